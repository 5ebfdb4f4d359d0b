"""Every setting, read once from the environment or a `.env`. A bad value stops the start with one sentence.

All waiting periods are settings (seconds); tests shorten them.
"""

import json
import os
import secrets
import socket
import stat
import sys
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from environs import Env, EnvError

from portal import databases, logs

BASE_DIR = Path(__file__).resolve().parent.parent
env = Env()
env.read_env(os.environ.get("DOCKYARD_ENV_FILE", str(BASE_DIR / ".env")), recurse=False)


def _stop(sentence: str) -> None:
    sys.stderr.write(f"Dockyard cannot start: {sentence}\n")
    raise SystemExit(78)  # EX_CONFIG


def _seconds(name: str, default: float) -> float:
    value: float = env.float(name, default)
    if value <= 0:
        raise EnvError(f'Environment variable "{name}" invalid: it must be a number of seconds above 0')
    return value


def _count(name: str, default: int) -> int:
    value: int = env.int(name, default)
    if value < 0:
        raise EnvError(f'Environment variable "{name}" invalid: it must be a whole number, 0 or more')
    return value


def _choice(name: str, default: str, allowed: tuple[str, ...]) -> str:
    value: str = env.str(name, default)
    if value not in allowed:
        raise EnvError(f'Environment variable "{name}" invalid: "{value}" is none of {", ".join(allowed)}')
    return value


def _networks(name: str) -> list[str]:
    """Addresses and networks, such as 10.0.0.7 and 10.1.0.0/16."""
    networks: list[str] = env.list(name, [])
    for network in networks:
        ip_network(network)  # its ValueError names what is wrong
    return networks


def _engine(host: str) -> str:
    """DOCKER_HOST, if it is an address that we can speak to."""
    if not host.startswith(("unix:///", "tcp://")):
        raise EnvError(f'Environment variable "DOCKER_HOST" invalid: "{host}" is neither unix:///path nor tcp://host')
    return host


def _engine_tls(host: str) -> Path | None:
    """The folder of ca.pem, cert.pem and key.pem for a TCP engine with DOCKER_TLS_VERIFY, as docker's client has it."""
    if not env.str("DOCKER_TLS_VERIFY", "") or not host.startswith("tcp://"):
        return None
    folder = Path(env.str("DOCKER_CERT_PATH", "") or Path.home() / ".docker")
    missing = [name for name in ("ca.pem", "cert.pem", "key.pem") if not (folder / name).is_file()]
    if missing:
        raise EnvError(f'DOCKER_TLS_VERIFY is set, and DOCKER_CERT_PATH "{folder}" lacks {", ".join(missing)}')
    return folder


def _stored_secret(path: Path) -> str:
    """The secret in `path`, made on first use and readable by its owner only."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(fd, "w") as file:
        secret = secrets.token_urlsafe(50)
        file.write(secret)
    return secret


def _keep_private(folder: Path) -> None:
    """Make the folder for our account alone; close one of ours that others may enter, unless it is a shared /tmp.

    Job containers need no way through it: the engine binds their workspace as root.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o077 and not found.st_mode & stat.S_ISVTX:
        folder.chmod(0o700)


def _load() -> dict[str, Any]:
    """Read what can be wrong in the environment; EnvError says what."""
    data = Path(env.str("DATA_DIR", str(BASE_DIR / "data"))).resolve()
    patience = _seconds("NETWORK_PATIENCE", 20)
    _keep_private(data)
    return {
        "DATA_DIR": data,
        "DEBUG": env.bool("DEBUG", False),
        "SECRET_KEY": env.str("SECRET_KEY", "") or _stored_secret(data / "secret_key"),
        "ALLOWED_HOSTS": env.list("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"]),
        "CSRF_TRUSTED_ORIGINS": env.list("CSRF_TRUSTED_ORIGINS", []),
        "NETWORK_PATIENCE": patience,
        "DATABASE": databases.parse(
            env.str("DATABASE_URL", "") or f"sqlite:///{data}/dockyard.sqlite3", patience=patience
        ),
        "REDIS_URL": env.str("REDIS_URL", "redis://127.0.0.1:6379/0"),
        "EMAIL": env.dj_email_url("EMAIL_URL", "dummy://"),
        "STORAGES": env.json("STORAGES", {}),
    }


try:
    _read = _load()

    # --- where things are ---
    DATA_DIR: Path = _read["DATA_DIR"]
    REDIS_URL: str = _read["REDIS_URL"]
    DOCKER_HOST: str = _engine(env.str("DOCKER_HOST", "unix:///var/run/docker.sock"))
    DOCKER_TLS: Path | None = _engine_tls(DOCKER_HOST)
    INSTALLATION: str = env.str("INSTALLATION", "main")  # tells our containers from those of another portal
    NODE_NAME: str = env.str("NODE_NAME", socket.gethostname().split(".")[0].lower())
    NODE_NAMES: list[str] = env.list("NODE_NAMES", [NODE_NAME])  # whose RQ queues the staff page shows
    SPOOL_DIR = Path(env.str("SPOOL_DIR", str(DATA_DIR / "spool")))
    WORKSPACE_ROOT = Path(env.str("WORKSPACE_ROOT", str(DATA_DIR / "workspaces")))
    MOUNT_ROOTS: list[str] = env.list("MOUNT_ROOTS", ["/data", "/mnt", "/srv"])
    PUBLIC_URL: str = env.str("PUBLIC_URL", "http://localhost:8000")  # in e-mails, and where hosts join
    # As hosts that join reach them, without a user; empty: as we do.
    NODE_REDIS_URL: str = env.str("NODE_REDIS_URL", "") or REDIS_URL
    NODE_DATABASE_URL: str = env.str("NODE_DATABASE_URL", "") or env.str("DATABASE_URL", "")
    LOGS_ARE_SHARED: bool = "logs" in _read["STORAGES"]  # by an admin's word: all hosts reach them

    # --- GPUs ---
    GPU_DRIVER = _choice("GPU_DRIVER", "nvml", ("nvml", "simulated"))
    SIMULATED_GPUS: int = env.int("SIMULATED_GPUS", 4)
    SIMULATED_GPU_MODEL: str = env.str("SIMULATED_GPU_MODEL", "NVIDIA A100-SXM4-40GB")
    SIMULATED_GPU_MEMORY_MIB: int = env.int("SIMULATED_GPU_MEMORY_MIB", 40960)
    SIMULATED_MIG: str = env.str("SIMULATED_MIG", "")  # GPUs split into instances: "0:1g.10gb+3g.40gb 2:7g.80gb"
    SIMULATED_ISLAND: int = env.int("SIMULATED_ISLAND", 0)  # so many GPUs are joined by NVLink; 0: not told
    GPU_INJECTION = _choice("GPU_INJECTION", "toolkit", ("toolkit", "cdi", "runtime", "none"))
    if GPU_DRIVER == "simulated":
        GPU_INJECTION = "none"
    GPU_MEMORY_FLOOR_MIB: int = env.int("GPU_MEMORY_FLOOR_MIB", 512)
    GPU_SYSTEM_PROCESSES: list[str] = env.list(
        "GPU_SYSTEM_PROCESSES",
        ["Xorg", "Xwayland", "gnome-shell", "nv-hostengine", "dcgm-exporter", "nvidia-cuda-mps-control",
         "nvidia-cuda-mps-server", "nvidia-persistenced"],
    )  # fmt: skip

    # --- waiting periods (seconds) ---
    THREAD_REST = _seconds("THREAD_REST", 30)  # then a thread that waits for a request ends, with its connection
    SCHEDULER_PERIOD = _seconds("SCHEDULER_PERIOD", 5)
    SCHEDULER_LEASE = _seconds("SCHEDULER_LEASE", 10)  # for which nobody places jobs where one was killed in its turn
    RESERVE_AFTER = _seconds("RESERVE_AFTER", 600)  # T: then freed GPUs of a chosen node are kept for a blocked job
    ORDER_REREAD = _seconds("ORDER_REREAD", 1)  # how old a job's place in the queue may be
    TERMS_REREAD = _seconds("TERMS_REREAD", 1)  # how old limits, shares and hosts may be where placing decides again
    PAST_REREAD = _seconds("PAST_REREAD", 30)  # how old what is known of ended runs and past estimates may be
    WHAT_IF_TIMEOUT = _seconds("WHAT_IF_TIMEOUT", 600)  # the longest that an admin's question is worked on
    PLACED_TIMEOUT = _seconds("PLACED_TIMEOUT", 60)  # a placed run nobody picked up goes back to the queue
    START_RESEND = _seconds("START_RESEND", 10)  # a start whose message was lost is sent again
    NODE_HEARTBEAT = _seconds("NODE_HEARTBEAT", 5)
    NODE_SILENT_AFTER = _seconds("NODE_SILENT_AFTER", 30)
    RECONCILE_PERIOD = _seconds("RECONCILE_PERIOD", 15)
    DEADLINE_PERIOD = _seconds("DEADLINE_PERIOD", 1)
    ATTACH_TIMEOUT = _seconds("ATTACH_TIMEOUT", 2)
    ENGINE_TIMEOUT = _seconds("ENGINE_TIMEOUT", 60)
    PULL_TIMEOUT = _seconds("PULL_TIMEOUT", 3600)
    PULL_RETRY = _seconds("PULL_RETRY", 30)  # after a registry's rate limit
    KILL_SETTLE = _seconds("KILL_SETTLE", 2)  # after a kill from outside: was it the engine going down?
    START_TIMEOUT = _seconds("START_TIMEOUT", 600)  # for everything of a start but the pull
    KILL_STUCK_AFTER = _seconds("KILL_STUCK_AFTER", 30)
    SAMPLE_PERIOD = _seconds("SAMPLE_PERIOD", 1)
    SAMPLE_FRESH = _seconds("SAMPLE_FRESH", 20)  # an older reading makes a GPU unknown, which is busy
    FOREIGN_GRACE = _seconds("FOREIGN_GRACE", 10)  # an ended run's processes are not outsiders yet
    IDLE_AFTER = _seconds("IDLE_AFTER", 900)  # a run whose GPUs do nothing for so long is said to be idle
    IDLE_STOP_AFTER = _count("IDLE_STOP_AFTER", 0)  # seconds after that was said it is stopped; 0: never
    IDLE_MAIL: bool = env.bool("IDLE_MAIL", True)  # whether its owner is told so by e-mail, once a job
    NETWORK_PATIENCE: float = _read["NETWORK_PATIENCE"]  # a line to Redis or PostgreSQL that is silent so long is dead
    REDIS_PATIENCE = _seconds("REDIS_PATIENCE", 1)  # how long a page waits for Redis
    REDIS_REST = _seconds("REDIS_REST", 4)  # after Redis failed a page, how long this process's others do without
    NEWS_PING = _seconds("NEWS_PING", 2)  # how often a web process asks whether its news still come
    NEWS_SILENCE = _seconds("NEWS_SILENCE", 6)  # after so long without an answer, browsers are told that they don't
    DOCTOR_PERIOD = _seconds("DOCTOR_PERIOD", 300)  # between two looks of a host at what it stands on
    METRICS_REREAD = _seconds("METRICS_REREAD", 5)  # how old the figures for Prometheus may be
    SOCKET_RECHECK = _seconds("SOCKET_RECHECK", 15)
    SOCKET_PING = _seconds("SOCKET_PING", 20)
    JOIN_TOKEN_LIFE = _seconds("JOIN_TOKEN_LIFE", 3600)

    # --- jobs ---
    JOB_NETWORK = _choice("JOB_NETWORK", "isolated", ("isolated", "none"))
    JOBS_REACH_PORTAL: bool = env.bool("JOBS_REACH_PORTAL", False)  # its web, at PUBLIC_URL, from their bridge
    MAX_REQUEUES: int = env.int("MAX_REQUEUES", 3)
    DEFAULT_LIMIT_SECONDS: int = env.int("DEFAULT_LIMIT_SECONDS", 24 * 3600)
    PIDS_LIMIT: int = env.int("PIDS_LIMIT", 4096)
    START_WORKERS: int = env.int("START_WORKERS", 4)
    # Of all that a user has on a host, and of what a container writes outside its mounts; 0: no limit.
    WORKSPACE_BYTES = _count("WORKSPACE_BYTES", 0)
    WORKSPACE_FILES = _count("WORKSPACE_FILES", 0)
    SCRATCH_BYTES = _count("SCRATCH_BYTES", 100 << 30)
    SCRATCH_FILES = _count("SCRATCH_FILES", 1_000_000)
    DISK_PERIOD = _seconds("DISK_PERIOD", 30)  # between two looks at that
    DISK_RESERVE_MIB = _count("DISK_RESERVE_MIB", 512)  # a host with less free on one of its disks takes no new jobs
    LOG_LIMIT_BYTES: int = env.int("LOG_LIMIT_BYTES", 1 << 30)
    LOG_SEGMENT_BYTES: int = env.int("LOG_SEGMENT_BYTES", 1 << 20)
    LOG_DAYS = _count("LOG_DAYS", 0)  # logs of jobs that ended longer ago are deleted; 0: none ever
    LOG_USER_BYTES = _count("LOG_USER_BYTES", 0)  # of a user's ended jobs, beyond which the oldest go; 0: no limit
    LOG_PACK_AFTER = _seconds("LOG_PACK_AFTER", 600)  # after a run's end its log is compressed
    LOG_PACK_PERIOD = _seconds("LOG_PACK_PERIOD", 30)  # between two looks for logs to compress
    GPU_HISTORY_DAYS = _count("GPU_HISTORY_DAYS", 400)  # of the minutes that charts are drawn from; 0: for ever
    LOG_SEGMENT_PERIOD = _seconds("LOG_SEGMENT_PERIOD", 30)
    PROGRESS_PERIOD = _seconds("PROGRESS_PERIOD", 1)  # between two writes of how far a run says that it is
    METRICS_PERIOD = _seconds("METRICS_PERIOD", 5)  # between two writes of the numbers that it prints of itself

    # --- Django ---
    DEBUG: bool = _read["DEBUG"]
    SECRET_KEY: str = _read["SECRET_KEY"]
    SECRETS_KEY: str = env.str("SECRETS_KEY", SECRET_KEY)  # encrypts secrets at rest
    ALLOWED_HOSTS: list[str] = _read["ALLOWED_HOSTS"]
    CSRF_TRUSTED_ORIGINS: list[str] = _read["CSRF_TRUSTED_ORIGINS"]
    HTTPS: bool = env.bool("HTTPS", False)  # a TLS front is before us
    TIME_ZONE: str = env.str("TIME_ZONE", "UTC")
    DEFAULT_FROM_EMAIL: str = env.str("DEFAULT_FROM_EMAIL", "dockyard@localhost")
    # Of one session, token or address, in each web process; 0: no limit.
    WRITES_PER_MINUTE = _count("WRITES_PER_MINUTE", 600)
    API_READS_PER_MINUTE = _count("API_READS_PER_MINUTE", 6000)
    METRICS_TOKEN: str = env.str("METRICS_TOKEN", "")  # opens /metrics to a program; empty: no token does
    METRICS_ALLOW: list[str] = _networks("METRICS_ALLOW")
    LOG_LEVEL = _choice("LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR"))
    LOG_FORMAT = _choice("LOG_FORMAT", "text", ("text", "json"))
    LOG_REQUESTS: bool = env.bool("LOG_REQUESTS", True)  # a line for each, with its id
except (EnvError, ValueError, OSError, json.JSONDecodeError) as error:
    _stop(" ".join(str(error).split()) + ". Correct it in the environment or in .env.")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "allauth",
    "allauth.account",
    "portal.apps.AuditConfig",
    "channels",
    "crispy_forms",
    "crispy_bootstrap5",
    "csp",
    "django_htmx",
    "portal.apps.TaskQueuesConfig",
    "ninja",
    "portal",
    "gpus",
    "jobs",
]

MIDDLEWARE = [
    "portal.telemetry.RequestTimes",
    "portal.requestlog.RequestIds",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "portal.middleware.Sessions",
    "django.middleware.locale.LocaleMiddleware",
    "portal.apierrors.JsonErrors",
    "portal.ratelimit.RateLimits",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "portal.middleware.Reader",
    "django.contrib.messages.middleware.MessageMiddleware",
    "portal.middleware.RqPages",
    "portal.middleware.AdminPages",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "portal.middleware.Audit",
]

ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.context.shell",
            ]
        },
    }
]

# --- database ---
_database: dict[str, Any] = _read["DATABASE"]
if _database["ENGINE"] == "django.db.backends.sqlite3":
    _database["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",  # a lock from the first statement on: no upgrade can fail half-way
        "timeout": 30,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA mmap_size=134217728;",
    }
    _database["TEST"] = {"NAME": str(DATA_DIR / "test.sqlite3")}
    _database["CONN_MAX_AGE"] = 60
else:
    _database["CONN_MAX_AGE"] = 60
    _database["CONN_HEALTH_CHECKS"] = True
DATABASES = {"default": _database}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The log-in limiter counts here: in the database, so that it needs no Redis and all web processes share it.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "cache"}}

# --- Redis: a carrier, never the truth ---
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": f"dockyard.{INSTALLATION}"},
    }
}
RQ_QUEUES = {
    name: {
        "URL": REDIS_URL,
        "SERIALIZER": "rq.serializers.JSONSerializer",
        "REDIS_CLIENT_KWARGS": {"socket_timeout": 2, "socket_connect_timeout": 2},  # for its staff pages
    }
    for name in ["scheduler", *(q for n in NODE_NAMES for q in (f"node.{n}", f"node.{n}.stop"))]
}
RQ = {"JOB_CLASS": "jobs.queues.ListedJob", "WORKER_CLASS": "jobs.queues.Worker"}
RQ_SHOW_ADMIN_LINK = True

# --- files ---
STORAGES: dict[str, Any] = {
    "default": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": str(DATA_DIR / "files")},
    },
    "logs": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": str(DATA_DIR / "logs")},
    },
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
    **_read["STORAGES"],
}
DATA_UPLOAD_MAX_MEMORY_SIZE = 8 << 20  # a pasted script may be far too long, and the form says so
FILE_UPLOAD_HANDLERS = ["portal.bodies.NoFiles"]
STATIC_URL = "/static/"
STATIC_ROOT = Path(env.str("STATIC_ROOT", str(DATA_DIR / "staticroot")))
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_SKIP_COMPRESS_EXTENSIONS = ["map", "png", "gif", "ico", "woff", "woff2", "gz", "br"]  # small, or rarely read

# --- people ---
AUTH_USER_MODEL = "portal.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "dashboard"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_ADAPTER = "portal.accounts.ClosedSignup"
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_SESSION_REMEMBER = True
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]

# --- language ---
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [BASE_DIR / "locale"]
USE_I18N = True
USE_TZ = True

# --- browser security ---
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]  # asked past the front, where there is no TLS
SECURE_HSTS_SECONDS = 31536000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        "img-src": ["'self'", "data:"],  # Bootstrap's own icons
        "style-src": ["'self'", "'unsafe-inline'"],  # lengths of bars are style attributes
        "connect-src": ["'self'"],
        "frame-ancestors": ["'none'"],
        "base-uri": ["'self'"],
        "form-action": ["'self'"],
        "object-src": ["'none'"],
    }
}

vars().update({name: value for name, value in _read["EMAIL"].items() if name.startswith("EMAIL_")})
CRISPY_ALLOWED_TEMPLATE_PACKS = CRISPY_TEMPLATE_PACK = "bootstrap5"

LOGGING = logs.config(LOG_FORMAT, LOG_LEVEL)
