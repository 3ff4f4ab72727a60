/* Records what a machine would still have after a power cut: at each fsync or fdatasync below BASE the content of the
   file, or the names in the folder, is copied into LOG.d, and one line in LOG says so. Nothing else survives. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int count;

static unsigned long long born(const struct statx *about)
{
    return about->stx_btime.tv_sec * 1000000000ull + about->stx_btime.tv_nsec;
}

static void copy_file(int from, int to)
{
    char path[64], block[65536];
    ssize_t got;
    snprintf(path, sizeof path, "/proc/self/fd/%d", from);
    int again = open(path, O_RDONLY | O_CLOEXEC); /* a descriptor of its own: the file's offset is not ours */
    if (again < 0)
        return;
    while ((got = read(again, block, sizeof block)) > 0)
        if (write(to, block, got) != got)
            break;
    close(again);
}

static void copy_names(const char *folder, int to)
{
    DIR *open_folder = opendir(folder);
    struct dirent *entry;
    char line[5000];
    if (!open_folder)
        return;
    while ((entry = readdir(open_folder))) {
        struct statx about;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (statx(dirfd(open_folder), entry->d_name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &about))
            continue;
        char kind = S_ISDIR(about.stx_mode) ? 'd' : S_ISREG(about.stx_mode) ? 'f' : S_ISFIFO(about.stx_mode) ? 'p' : '?';
        int length = snprintf(line, sizeof line, "%c %llu-%llu %s\n", kind, (unsigned long long)about.stx_ino,
                              born(&about), entry->d_name);
        if (write(to, line, length) != length)
            break;
    }
    closedir(open_folder);
}

static void record(int descriptor, char *line, size_t room)
{
    char link[64], path[4096], copy[4096];
    struct statx about;
    line[0] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return;
    path[length] = 0;
    if (strncmp(path, BASE, strlen(BASE)) || (path[strlen(BASE)] != '/' && path[strlen(BASE)]))
        return;
    if (statx(descriptor, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &about))
        return;
    snprintf(copy, sizeof copy, "%s.d/%d-%ld-%d", LOG, getpid(), syscall(SYS_gettid), __sync_add_and_fetch(&count, 1));
    int to = open(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (to < 0)
        return;
    if (S_ISDIR(about.stx_mode))
        copy_names(path, to);
    else
        copy_file(descriptor, to);
    close(to);
    snprintf(line, room, "%c %llu-%llu %s\n", S_ISDIR(about.stx_mode) ? 'D' : 'F', (unsigned long long)about.stx_ino,
             born(&about), strrchr(copy, '/') + 1);
}

static int forced(int descriptor, long number)
{
    char line[512];
    int before = errno;
    record(descriptor, line, sizeof line); /* before: what is written meanwhile was not promised */
    errno = before;
    int done = syscall(number, descriptor);
    before = errno;
    if (!done && line[0]) {
        int log = open(LOG, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (log >= 0) {
            if (write(log, line, strlen(line)) < 0)
                _exit(99);
            close(log);
        }
    }
    errno = before;
    return done;
}

int fsync(int descriptor) { return forced(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return forced(descriptor, SYS_fdatasync); }
