"""The product in containers, as compose.yaml has it, on a private engine: `make test-compose`."""
