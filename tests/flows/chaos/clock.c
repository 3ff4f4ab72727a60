/* A machine whose clock was set: every process that loads this sees the wall clock moved by the seconds in a file.
   The monotonic clock and the times of files stay, as they do when somebody sets the clock of a machine. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *moved;

static long long offset(void) {
    if (!moved) {
        int file = open(CLOCK_FILE, O_RDONLY | O_CLOEXEC);
        if (file < 0) return 0;
        void *page = mmap(0, sizeof *moved, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (page == MAP_FAILED) return 0;
        moved = page;
    }
    return *moved;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int (*next)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    int (*next)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int result = next(time, zone);
    if (result == 0 && time) time->tv_sec += offset();
    return result;
}

time_t time(time_t *into) {
    time_t (*next)(time_t *) = dlsym(RTLD_NEXT, "time");
    time_t now = next(0) + offset();
    if (into) *into = now;
    return now;
}
