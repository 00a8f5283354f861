/* A libnvidia-ml.so.1 for tests: as much of NVML as carbonq's meter calls, with counters read from a file.
 *
 * FAKE_NVML names the file. Its first line is the return code of nvmlInit; each further line is one GPU:
 * "<uuid> <return code of the energy counter> <mJ>". The file is read at every call, so a test can move the counters.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GPUS 8
#define NVML_SUCCESS 0
#define NVML_ERROR_INVALID_ARGUMENT 2
#define NVML_ERROR_NOT_FOUND 6

typedef struct { char uuid[96]; int code; unsigned long long mj; } gpu_t;

static gpu_t gpus[MAX_GPUS];

static int read_state(unsigned *count) {
    int init = NVML_SUCCESS;
    *count = 0;
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    if (!file || fscanf(file, "%d", &init) != 1) exit(97);
    while (*count < MAX_GPUS && fscanf(file, "%95s %d %llu", gpus[*count].uuid, &gpus[*count].code, &gpus[*count].mj) == 3)
        ++*count;
    fclose(file);
    return init;
}

int nvmlInitWithFlags(unsigned flags) { unsigned count; (void)flags; return read_state(&count); }
int nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake NVML"; }
int nvmlDeviceGetCount_v2(unsigned *count) { read_state(count); return NVML_SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    unsigned count;
    read_state(&count);
    if (index >= count) return NVML_ERROR_INVALID_ARGUMENT;
    *device = &gpus[index];
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    unsigned count;
    read_state(&count);
    for (unsigned index = 0; index < count; ++index)
        if (!strcmp(gpus[index].uuid, uuid)) { *device = &gpus[index]; return NVML_SUCCESS; }
    return NVML_ERROR_NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "%s", ((gpu_t *)device)->uuid);
    return NVML_SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
    unsigned count;
    read_state(&count);
    *mj = ((gpu_t *)device)->mj;
    return ((gpu_t *)device)->code;
}
