/* A libnvidia-ml.so.1 with one GPU whose power follows a schedule, so that the true energy of any stretch is known.
 *
 * SCHEDULED_NVML names a file: the first line is the idle power in mW, each further line "<start s> <end s> <mW>", times
 * of CLOCK_MONOTONIC, end 0 while it lasts. The energy counter moves every 100 ms, as an H200's does. It has what
 * Zeus, CodeCarbon and carbonq call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LAG_S 0.1

static double began_s;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double energy_mj(double until_s, double *power_mw) {
    double idle, start, end, mw;
    FILE *file = fopen(getenv("SCHEDULED_NVML"), "r");
    if (!file || fscanf(file, "%lf", &idle) != 1) exit(97);
    double mj = idle * (until_s - began_s);
    *power_mw = idle;
    while (fscanf(file, "%lf %lf %lf", &start, &end, &mw) == 3) {
        double last = end == 0 || end > until_s ? until_s : end;
        if (start < until_s) mj += (mw - idle) * (last - start);
        if (start <= until_s && (end == 0 || end > until_s)) *power_mw = mw;
    }
    fclose(file);
    return mj;
}

int nvmlInit_v2(void) {
    const char *epoch = getenv("SCHEDULED_NVML_BEGAN");
    began_s = epoch ? atof(epoch) : 0;
    return 0;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the scheduled NVML"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &began_s; return index ? 2 : 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { (void)uuid; *device = &began_s; return 0; }
int nvmlDeviceGetUUID(void *d, char *out, unsigned n) { (void)d; snprintf(out, n, "GPU-scheduled"); return 0; }
int nvmlDeviceGetName(void *d, char *out, unsigned n) { (void)d; snprintf(out, n, "Scheduled GPU"); return 0; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { snprintf(out, n, "580.0"); return 0; }
int nvmlDeviceGetArchitecture(void *d, unsigned *a) { (void)d; *a = 9; return 0; }
int nvmlDeviceGetIndex(void *d, unsigned *i) { (void)d; *i = 0; return 0; }
int nvmlDeviceGetMinorNumber(void *d, unsigned *i) { (void)d; *i = 0; return 0; }
int nvmlDeviceGetTemperature(void *d, int s, unsigned *t) { (void)d; (void)s; *t = 40; return 0; }
int nvmlDeviceGetPowerManagementLimit(void *d, unsigned *mw) { (void)d; *mw = 700000; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw) { (void)d; *mw = 700000; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, void *p) { (void)d; (void)p; *n = 0; return 0; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *n, void *p) { (void)d; (void)p; *n = 0; return 0; }

int nvmlDeviceGetComputeMode(void *d, int *mode) { (void)d; *mode = 0; return 0; }
int nvmlDeviceGetComputeInstanceId(void *d, unsigned *id) { (void)d; (void)id; return 3; }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *rates) { (void)d; rates[0] = rates[1] = 50; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *memory) {
    (void)d;
    memory[0] = 1ull << 36; memory[1] = 1ull << 35; memory[2] = 1ull << 35;
    return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *mj) {
    double power, now = now_s();
    (void)d;
    *mj = (unsigned long long)energy_mj((double)(long long)(now / LAG_S) * LAG_S, &power);
    return 0;
}

int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) {
    double power;
    (void)d;
    energy_mj(now_s(), &power);
    *mw = (unsigned)power;
    return 0;
}
