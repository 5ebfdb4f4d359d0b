/* A stand-in for libnvidia-ml.so.1. Its answers are lines "key=value" of the file that NVML_STANDIN names,
 * read again whenever the file was replaced. Keys: "init", "count", "driver", and "<index>.<field>" with the
 * fields mig (how many instances the GPU is split into; "0" for a mode with none), nvlink (the indices that it is
 * joined with: "1,2"), numa, uuid, name, pci, total, used, reserved, utilisation, power, power_limit, temperature,
 * clock, memory_clock, reasons (the bits of its clock events), ecc, xid (with a new "xid_number" each is told once), handle, memory,
 * Compute, Graphics, MPSCompute (lists "pid:bytes,pid:-"). Any key may have "<key>.rc" (the code to return),
 * "<key>.hang" (never return) and "<key>.crash" (a segmentation fault). No value: not supported.
 * An instance's keys are "<index>/<number>.<field>". Like NVML, it is initialised only in the process that initialised it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef void *device_t;
typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned version, sensor; int temperature; } temperature_t;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct {
    char bus_legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
} pci_t;

static pid_t initialised_by = 0;
static char *text = NULL;
static struct stat loaded; /* inode numbers come again, so the time counts too */

static void load(void) {
    const char *path = getenv("NVML_STANDIN");
    struct stat status;
    FILE *file;
    if (!path || stat(path, &status)) return;
    if (status.st_ino == loaded.st_ino && !memcmp(&status.st_mtim, &loaded.st_mtim, sizeof status.st_mtim)) return;
    if (!(file = fopen(path, "rb"))) return;
    free(text);
    text = calloc(1, (size_t)status.st_size + 2);
    text[0] = '\n';
    if (fread(text + 1, 1, (size_t)status.st_size, file) == (size_t)status.st_size) loaded = status;
    fclose(file);
}

/* The value of `key`, copied to `value`; 0 when there is none. */
static int look(const char *key, char *value, size_t size) {
    char needle[128];
    const char *found, *end;
    size_t length;
    load();
    snprintf(needle, sizeof needle, "\n%s=", key);
    if (!text || !(found = strstr(text, needle))) return 0;
    found += strlen(needle);
    end = strchr(found, '\n');
    length = end ? (size_t)(end - found) : strlen(found);
    if (length >= size) length = size - 1;
    memcpy(value, found, length);
    value[length] = 0;
    return 1;
}

static int flag(const char *key, const char *suffix, char *value, size_t size) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", key, suffix);
    return look(name, value, size);
}

/* What happens on a call that concerns `key`, before it has a value. */
static int enter(const char *key) {
    char value[64];
    if (flag(key, "hang", value, sizeof value)) for (;;) pause();
    if (flag(key, "crash", value, sizeof value)) *(volatile int *)0 = 1;
    return flag(key, "rc", value, sizeof value) ? atoi(value) : OK;
}

static int ready(const char *key) {
    return initialised_by == getpid() ? enter(key) : UNINITIALIZED;
}

enum { INSTANCES = 1000 }; /* a MIG instance's handle is that many times its GPU's, and its own number */

static const char *key_of(device_t device, const char *field) {
    static char key[64];
    int number = (int)(size_t)device;
    if (number < INSTANCES) snprintf(key, sizeof key, "%d.%s", number - 1, field);
    else snprintf(key, sizeof key, "%d/%d.%s", number / INSTANCES - 1, number % INSTANCES, field);
    return key;
}

static int get_text(const char *key, char *out, unsigned size) {
    int rc = ready(key);
    if (rc) return rc;
    return look(key, out, size) ? OK : NOT_SUPPORTED;
}

static int get_number(device_t device, const char *field, u64 *out) {
    char value[64];
    const char *key = key_of(device, field);
    int rc = ready(key);
    if (rc) return rc;
    if (!look(key, value, sizeof value)) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 10);
    return OK;
}

static int get_unsigned(device_t device, const char *field, unsigned *out) {
    u64 value = 0;
    int rc = get_number(device, field, &value);
    if (!rc) *out = (unsigned)value;
    return rc;
}

int nvmlInitWithFlags(unsigned flags) {
    int rc = enter("init");
    (void)flags;
    if (!rc) initialised_by = getpid();
    return rc;
}

int nvmlShutdown(void) {
    initialised_by = 0;
    return OK;
}

const char *nvmlErrorString(int code) {
    switch (code) {
        case 1: return "Uninitialized";
        case 3: return "Not Supported";
        case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost";
        case 18: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) { return get_text("driver", out, size); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    char value[16];
    int rc = ready("count");
    if (rc) return rc;
    *count = look("count", value, sizeof value) ? (unsigned)atoi(value) : 0;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    *device = (device_t)(size_t)(index + 1);
    return ready(key_of(*device, "handle"));
}

int nvmlDeviceGetName(device_t device, char *out, unsigned size) { return get_text(key_of(device, "name"), out, size); }
int nvmlDeviceGetUUID(device_t device, char *out, unsigned size) { return get_text(key_of(device, "uuid"), out, size); }

int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *info) {
    memset(info, 0, sizeof *info);
    return get_text(key_of(device, "pci"), info->bus_id, sizeof info->bus_id);
}

static int get_memory(device_t device, u64 *total, u64 *used, u64 *reserved) {
    int rc = ready(key_of(device, "memory"));
    if (rc || (rc = get_number(device, "total", total))) return rc;
    *used = *reserved = 0;
    get_number(device, "used", used);
    get_number(device, "reserved", reserved);
    return OK;
}

int nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory) {
    u64 reserved;
    int rc = get_memory(device, &memory->total, &memory->used, &reserved);
    if (rc) return rc;
    memory->used += reserved;
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *rates) {
    rates->memory = 0;
    return get_unsigned(device, "utilisation", &rates->gpu);
}

int nvmlDeviceGetPowerUsage(device_t device, unsigned *milliwatts) { return get_unsigned(device, "power", milliwatts); }

int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    return get_unsigned(device, "temperature", celsius);
}

int nvmlDeviceGetClockInfo(device_t device, unsigned type, unsigned *mhz) {
    return get_unsigned(device, type == 2 ? "memory_clock" : "clock", mhz);
}

int nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *milliwatts) {
    return get_unsigned(device, "power_limit", milliwatts);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, u64 *reasons) {
    return get_number(device, "reasons", reasons);
}

int nvmlDeviceGetTotalEccErrors(device_t device, unsigned kind, unsigned counter, u64 *count) {
    (void)kind;
    (void)counter;
    return get_number(device, "ecc", count);
}

/* Events: the set is the list of devices in it; a device tells its Xid once for each value of "xid_number". */
enum { TIMED_OUT = 10, MOST_DEVICES = 64 };
typedef struct { device_t device; u64 type, data; unsigned gpu_instance, compute_instance; } event_t;
static struct { device_t device; u64 told; } registered[MOST_DEVICES];
static unsigned registrations = 0;

int nvmlEventSetCreate(void **set) {
    int rc = ready("events");
    if (!rc) *set = registered, registrations = 0;
    return rc;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    return OK;
}

int nvmlDeviceRegisterEvents(device_t device, u64 kinds, void *set) {
    (void)set;
    if (!(kinds & 8) || registrations == MOST_DEVICES) return INVALID;
    registered[registrations].device = device;
    registered[registrations++].told = 0;
    return OK;
}

int nvmlEventSetWait_v2(void *set, event_t *event, unsigned milliseconds) {
    unsigned i;
    u64 number;
    (void)set;
    (void)milliseconds;
    for (i = 0; i < registrations; i++) {
        device_t device = registered[i].device;
        if (get_number(device, "xid_number", &number) || number == registered[i].told) continue;
        registered[i].told = number;
        memset(event, 0, sizeof *event);
        event->device = device;
        event->type = 8;
        return get_number(device, "xid", &event->data);
    }
    return TIMED_OUT;
}

int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending) {
    unsigned instances;
    int rc = get_unsigned(device, "mig", &instances);
    *current = *pending = 1;
    return rc;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count) {
    (void)device;
    *count = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *instance) {
    unsigned instances = 0;
    int rc = get_unsigned(device, "mig", &instances);
    *instance = (device_t)((size_t)device * INSTANCES + index);
    return rc ? rc : index < instances ? OK : NOT_FOUND;
}

int nvmlDeviceGetP2PStatus(device_t one, device_t other, unsigned kind, unsigned *status) {
    char list[256], wanted[16], *item, *rest = NULL;
    const char *key = key_of(one, "nvlink");
    int rc = ready(key);
    (void)kind;
    if (rc) return rc;
    if (!look(key, list, sizeof list)) return NOT_SUPPORTED;
    *status = 1;
    snprintf(wanted, sizeof wanted, "%d", (int)(size_t)other - 1);
    for (item = strtok_r(list, ",", &rest); item; item = strtok_r(NULL, ",", &rest))
        if (!strcmp(item, wanted)) *status = 0;
    return OK;
}

int nvmlDeviceGetMemoryAffinity(device_t device, unsigned size, u64 *nodes, unsigned scope) {
    u64 node = 0;
    int rc = get_number(device, "numa", &node);
    (void)scope;
    memset(nodes, 0, size * sizeof *nodes);
    if (!rc && node / 64 < size) nodes[node / 64] = 1ULL << (node % 64);
    return rc;
}

static int get_processes(device_t device, const char *kind, unsigned *count, process_t *out) {
    char list[4096] = "", *item, *rest = NULL;
    const char *key = key_of(device, kind);
    unsigned room = *count, found = 0;
    int rc = ready(key);
    if (rc) return rc;
    if (!look(key, list, sizeof list)) return *count = 0, OK;
    for (item = strtok_r(list, ",", &rest); item; item = strtok_r(NULL, ",", &rest), found++) {
        char *memory = strchr(item, ':');
        if (found >= room || !out) continue;
        memset(&out[found], 0, sizeof out[found]);
        out[found].pid = (unsigned)strtoul(item, NULL, 10);
        out[found].used = memory && memory[1] != '-' ? strtoull(memory + 1, NULL, 10) : ~0ULL;
    }
    *count = found;
    return found > room || (found && !out) ? INSUFFICIENT_SIZE : OK;
}

/* An old driver has the second version of these and not the third, and no second memory call. */
#ifdef OLD_DRIVER
#define PROCESSES(kind) nvmlDeviceGet##kind##RunningProcesses_v2
#else
#define PROCESSES(kind) nvmlDeviceGet##kind##RunningProcesses_v3

int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *memory) {
    int rc = get_memory(device, &memory->total, &memory->used, &memory->reserved);
    if (!rc) memory->free = memory->total - memory->used - memory->reserved;
    return rc;
}

int nvmlDeviceGetTemperatureV(device_t device, temperature_t *temperature) {
    unsigned celsius = 0;
    int rc = get_unsigned(device, "temperature", &celsius);
    temperature->temperature = (int)celsius;
    return rc;
}
#endif

int PROCESSES(Compute)(device_t device, unsigned *count, process_t *out) {
    return get_processes(device, "Compute", count, out);
}
int PROCESSES(Graphics)(device_t device, unsigned *count, process_t *out) {
    return get_processes(device, "Graphics", count, out);
}
int PROCESSES(MPSCompute)(device_t device, unsigned *count, process_t *out) {
    return get_processes(device, "MPSCompute", count, out);
}
