/* A libnvidia-ml.so.1 for tests: as much of NVML as carbonq's meter calls, with counters read from a file.
 *
 * FAKE_NVML names the file. Its first line is the return code of nvmlInit; each further line is one GPU, or MIG slice:
 * "<uuid> <return code of the energy counter> <mJ>", then what is scripted of it, in any order:
 *   power=<mW>  power_code=<return code>  procs=<pid>,<pid>...  procs_code=<return code>
 *   lag_ms=<time between moves of the counter>  slow_us=<time a reading of the counter takes>
 *   parent=<uuid: this line is a slice of that GPU>
 * The file is read at every call, so a test can move the counters. A test must replace it by a rename.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_GPUS 16
#define MAX_PROCS 16
#define NVML_SUCCESS 0
#define NVML_ERROR_INVALID_ARGUMENT 2
#define NVML_ERROR_NOT_SUPPORTED 3
#define NVML_ERROR_NOT_FOUND 6
#define NVML_ERROR_INSUFFICIENT_SIZE 7

typedef struct {
    char uuid[96], parent[96];
    int code, power_code, procs_code;
    unsigned long long mj;
    long power_mw, lag_ms, slow_us;
    unsigned procs[MAX_PROCS], proc_count;
} gpu_t;

/* What a counter shows is kept between calls: it moves only once its lag is over. */
typedef struct { unsigned long long mj; double moved_s; int is_set; } shown_t;

typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } process_t;

static gpu_t gpus[MAX_GPUS];
static shown_t shown[MAX_GPUS];

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void scripted(gpu_t *gpu, char *word) {
    char *value = strchr(word, '=');
    if (!value) exit(98);
    *value++ = 0;
    if (!strcmp(word, "power")) gpu->power_mw = atol(value);
    else if (!strcmp(word, "power_code")) gpu->power_code = atoi(value);
    else if (!strcmp(word, "procs_code")) gpu->procs_code = atoi(value);
    else if (!strcmp(word, "lag_ms")) gpu->lag_ms = atol(value);
    else if (!strcmp(word, "slow_us")) gpu->slow_us = atol(value);
    else if (!strcmp(word, "parent")) snprintf(gpu->parent, sizeof gpu->parent, "%s", value);
    else if (!strcmp(word, "procs"))
        for (char *pid = value; *pid && gpu->proc_count < MAX_PROCS; pid += strspn(pid, ","))
            gpu->procs[gpu->proc_count++] = (unsigned)strtoul(pid, &pid, 10);
    else exit(98);
}

static int read_state(unsigned *count) {
    int init = NVML_SUCCESS;
    char line[1024];
    *count = 0;
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    if (!file || !fgets(line, sizeof line, file)) exit(97);
    init = atoi(line);
    while (*count < MAX_GPUS && fgets(line, sizeof line, file)) {
        gpu_t read = {.power_code = NVML_ERROR_NOT_SUPPORTED};
        int used = 0;
        if (sscanf(line, "%95s %d %llu%n", read.uuid, &read.code, &read.mj, &used) != 3) break;
        for (char *word = strtok(line + used, " \n"); word; word = strtok(NULL, " \n")) scripted(&read, word);
        if (read.power_mw) read.power_code = read.power_code == NVML_ERROR_NOT_SUPPORTED ? 0 : read.power_code;
        gpus[(*count)++] = read;
    }
    fclose(file);
    return init;
}

static unsigned whole(unsigned *at) {
    unsigned count, found = 0;
    read_state(&count);
    for (unsigned index = 0; index < count; ++index)
        if (!*gpus[index].parent) at[found++] = index;
    return found;
}

static int by_uuid(const char *uuid, void **device) {
    unsigned count;
    read_state(&count);
    for (unsigned index = 0; index < count; ++index)
        if (!strcmp(gpus[index].uuid, uuid)) { *device = &gpus[index]; return NVML_SUCCESS; }
    return NVML_ERROR_NOT_FOUND;
}

int nvmlInitWithFlags(unsigned flags) { unsigned count; (void)flags; return read_state(&count); }
int nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake NVML"; }
int nvmlDeviceGetCount_v2(unsigned *count) { unsigned at[MAX_GPUS]; *count = whole(at); return NVML_SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    unsigned at[MAX_GPUS];
    if (index >= whole(at)) return NVML_ERROR_INVALID_ARGUMENT;
    *device = &gpus[at[index]];
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return by_uuid(uuid, device); }

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **device) {
    return *((gpu_t *)slice)->parent ? by_uuid(((gpu_t *)slice)->parent, device) : NVML_ERROR_INVALID_ARGUMENT;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "%s", ((gpu_t *)device)->uuid);
    return NVML_SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
    unsigned count;
    read_state(&count);
    gpu_t *gpu = device;
    shown_t *last = &shown[gpu - gpus];
    if (*gpu->parent) return NVML_ERROR_NOT_SUPPORTED;
    if (gpu->slow_us) {
        struct timespec pause = {gpu->slow_us / 1000000, gpu->slow_us % 1000000 * 1000};
        nanosleep(&pause, NULL);
    }
    if (!last->is_set || now_s() - last->moved_s >= gpu->lag_ms / 1e3)
        *last = (shown_t){gpu->mj, now_s(), 1};
    *mj = last->mj;
    return gpu->code;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) {
    unsigned count;
    read_state(&count);
    *mw = (unsigned)((gpu_t *)device)->power_mw;
    return ((gpu_t *)device)->power_code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *room, process_t *processes) {
    unsigned count;
    read_state(&count);
    gpu_t *gpu = device;
    if (gpu->procs_code) return gpu->procs_code;
    unsigned had = *room;
    *room = gpu->proc_count;
    if (had < gpu->proc_count) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned index = 0; index < gpu->proc_count; ++index) processes[index] = (process_t){.pid = gpu->procs[index]};
    return NVML_SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *room, process_t *processes) {
    (void)device; (void)processes;
    *room = 0;
    return NVML_SUCCESS;
}
