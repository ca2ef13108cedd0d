/* A wall clock that is wrong on command. Preloaded into a process (clocks.py), it adds to the time of day what the
   control file says, which both map into their memory. Monotonic time is the machine's. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL

struct control {               /* the same order as in clocks.py */
    volatile int64_t version;  /* odd while the others are being changed */
    volatile int64_t offset_ns;
    volatile int64_t since_ns; /* on the monotonic clock */
    volatile int64_t drift_ppm;
};

static struct control right;
static struct control *control = &right;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("HEADWAY_FAULTY_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof right, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED)
        control = found;
}

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    real_gettime(clock, &now);
    return now.tv_sec * NS + now.tv_nsec;
}

static int64_t ahead_ns(void) {
    int64_t version, offset, since, ppm;
    do {
        version = control->version;
        __sync_synchronize();
        offset = control->offset_ns, since = control->since_ns, ppm = control->drift_ppm;
        __sync_synchronize();
    } while (version & 1 || version != control->version);
    return ppm ? offset + (now_ns(CLOCK_MONOTONIC) - since) / 1000 * ppm / 1000 : offset;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!real_gettime) /* before this library's start */
        start();
    if ((clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) || control->version == 0)
        return real_gettime(clock, time);
    int64_t ns = now_ns(clock) + ahead_ns();
    time->tv_sec = ns / NS, time->tv_nsec = ns % NS;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec, now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (now)
        *now = time.tv_sec;
    return time.tv_sec;
}
