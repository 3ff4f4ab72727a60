/* A disk that fails once: the n-th operation that changes something below a folder ends as a control page says.
   The page is shared by all processes: how many such operations have passed, which one fails, and with what. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct page {
    long passed; /* operations so far, counted from 1 */
    long fails;  /* the number of the one that fails; 0 for none */
    long error;  /* its errno; -1 writes half of the bytes instead */
};

static struct page *page;

static struct page *control(void) {
    if (!page) {
        int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
        int file = real_open(CONTROL_FILE, O_RDWR | O_CLOEXEC);
        if (file < 0) return 0;
        void *found = mmap(0, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (found == MAP_FAILED) return 0;
        page = found;
    }
    return page;
}

static int below(const char *path) { return path && strstr(path, FOLDER) != 0; }

static int below_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return below(path);
}

/* Return the error of this operation, 0 for none. */
static long fault(int is_ours) {
    if (!is_ours || !control()) return 0;
    long number = __atomic_add_fetch(&page->passed, 1, __ATOMIC_SEQ_CST);
    return page->fails && number == page->fails ? page->error : 0;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAILS(ours)                                              \
    do {                                                         \
        int before = errno;                                      \
        long error = fault(ours);                                \
        errno = before;                                          \
        if (error) { errno = error > 0 ? (int)error : ENOSPC; return -1; } \
    } while (0)

ssize_t write(int fd, const void *from, size_t size) {
    int before = errno;
    long error = fault(below_fd(fd));
    errno = before;
    if (error > 0) { errno = (int)error; return -1; }
    return NEXT(write)(fd, from, error < 0 && size > 1 ? size / 2 : size);
}

int fsync(int fd) { FAILS(below_fd(fd)); return NEXT(fsync)(fd); }
int fdatasync(int fd) { FAILS(below_fd(fd)); return NEXT(fdatasync)(fd); }
int link(const char *from, const char *to) { FAILS(below(to)); return NEXT(link)(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    FAILS(below(to) || below_fd(b));
    return NEXT(linkat)(a, from, b, to, flags);
}
int rename(const char *from, const char *to) { FAILS(below(to)); return NEXT(rename)(from, to); }
int renameat(int a, const char *from, int b, const char *to) {
    FAILS(below(to) || below_fd(b));
    return NEXT(renameat)(a, from, b, to);
}
int mkdir(const char *path, mode_t mode) { FAILS(below(path)); return NEXT(mkdir)(path, mode); }
int unlink(const char *path) { FAILS(below(path)); return NEXT(unlink)(path); }

#define OPENING(name)                                                         \
    int name(const char *path, int flags, ...) {                              \
        mode_t mode = 0;                                                      \
        if (flags & O_CREAT) {                                                \
            va_list more;                                                     \
            va_start(more, flags);                                            \
            mode = va_arg(more, mode_t);                                      \
            va_end(more);                                                     \
        }                                                                     \
        FAILS((flags & O_CREAT) && below(path));                              \
        return NEXT(name)(path, flags, mode);                                 \
    }

OPENING(open)
OPENING(open64)
