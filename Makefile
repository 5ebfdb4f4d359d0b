.DEFAULT_GOAL := help
.PHONY: help demo test test-compose lint bench soak chaos

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Set up what is missing and run the whole product with a sample job; ONCE=1 ends with that job, PORT= chooses the port
	@scripts/demo $(if $(ONCE),--once)

test: ## Set up what is missing and run every test, on real parts; as root
	@scripts/test

test-compose: ## Build the image and run the product by compose.yaml on a private engine, as root; PULL=1: real base images
	@scripts/bootstrap --tests
	@scripts/test-compose $(if $(PULL),--pull)

test-gpu: ## Run the NVML tests and measure the sampler on this machine's own driver; says so where there is none
	@scripts/test-gpu

lint: ## Check style, types, import directions, templates, migrations, translations and the deployment settings
	@scripts/lint

soak: ## As root: a browser in ten minutes of flood, then MINUTES=30 of jobs that come and go and must leave nothing behind
	@scripts/bootstrap --tests >&2
	@SOAK=1 .venv/bin/python -m pytest -m soak tests/e2e >&2
	@.venv/bin/python -m bench.soak

chaos: ## Kill every part at random under load on three hosts, as root, and count what was lost: JOBS=300 MINUTES=10 SEED= REPORT=
	@scripts/bootstrap --tests >&2
	@JOBS="$(JOBS)" MINUTES="$(MINUTES)" SEED="$(SEED)" REPORT="$(REPORT)" .venv/bin/python -m tests.chaos

bench: ## Measure against the reference in the same run: NAME=launch, throughput, logs, lag, fanout, load, pages, policy, eta, soak or openb (OPENB=folder)
	@test -n "$(NAME)" || { echo "Say which: make bench NAME=launch, or one of: $$(ls bench/*.py | sed 's|bench/||; s|\.py||' | grep -v '^_' | xargs)" >&2; exit 2; }
	@scripts/bootstrap --tests >&2
	@.venv/bin/python -m bench.$(NAME)
