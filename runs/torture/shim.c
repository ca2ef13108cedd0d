/* A disk that fails on command. Preloaded into a process (disks.py), it fails calls on files under one folder, as the
   control file says, which both map into their memory. While the disk is whole a call costs one look at that memory. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {                  /* the same order as in disks.py */
    volatile int64_t is_faulty;   /* whether any other is set */
    volatile int64_t is_full;
    volatile int64_t room;        /* bytes that a full disk still takes */
    volatile int64_t is_read_only;
    volatile int64_t bad_syncs;   /* how many syncs fail; -1: all */
    volatile int64_t slow_sync_ms;
    volatile int64_t failures;    /* calls that were failed or cut short, so far */
};

static struct control whole;
static struct control *control = &whole;
static const char *folder = "";
static size_t folder_length;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("HEADWAY_FAULTY_CONTROL"), *under = getenv("HEADWAY_FAULTY_FOLDER");
    if (!path || !under)
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    folder = under;
    folder_length = strlen(under);
    if (found != MAP_FAILED)
        control = found;
}

static int is_under(const char *path) {
    return strncmp(path, folder, folder_length) == 0 && (path[folder_length] == '/' || path[folder_length] == '\0');
}

static int has_file(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    return is_under(path);
}

static int has_path(int at, const char *path) {
    char link[64], whole_path[2 * PATH_MAX];
    if (path[0] == '/')
        return is_under(path);
    snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, whole_path, PATH_MAX);
    if (length < 0)
        return 0;
    snprintf(whole_path + length, PATH_MAX, "/%s", path);
    return is_under(whole_path);
}

static int fail(int error) {
    __sync_fetch_and_add(&control->failures, 1);
    errno = error;
    return -1;
}

/* How many of `size` bytes may be written to a file: -1 and errno if none. */
static ssize_t room_for(int fd, size_t size) {
    if (!(control->is_full || control->is_read_only) || !has_file(fd))
        return size;
    if (control->is_read_only)
        return fail(EROFS);
    int64_t room, taken;
    do {
        room = control->room;
        if (room <= 0 && size > 0)
            return fail(ENOSPC);
        taken = room < (int64_t)size ? room : (int64_t)size;
    } while (!__sync_bool_compare_and_swap(&control->room, room, room - taken));
    if (taken < (int64_t)size)
        __sync_fetch_and_add(&control->failures, 1);
    return taken;
}

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) \
        real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *bytes, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    ssize_t taken = control->is_faulty ? room_for(fd, size) : (ssize_t)size;
    return taken < 0 ? -1 : real(fd, bytes, taken);
}

#define PWRITE(name, offset_t) \
    ssize_t name(int fd, const void *bytes, size_t size, offset_t offset) { \
        REAL(ssize_t, #name, int, const void *, size_t, offset_t); \
        ssize_t taken = control->is_faulty ? room_for(fd, size) : (ssize_t)size; \
        return taken < 0 ? -1 : real(fd, bytes, taken, offset); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    if (control->is_faulty && has_file(fd)) { /* a short write: of the first part only */
        ssize_t taken = count ? room_for(fd, parts[0].iov_len) : 0;
        return taken < 0 ? -1 : write(fd, parts[0].iov_base, taken);
    }
    return real(fd, parts, count);
}

static int sync_fails(int fd) {
    if (!(control->bad_syncs || control->slow_sync_ms) || !has_file(fd))
        return 0;
    int64_t ms = control->slow_sync_ms, left;
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    if (ms)
        nanosleep(&pause, NULL);
    do {
        left = control->bad_syncs;
        if (left <= 0)
            break;
    } while (!__sync_bool_compare_and_swap(&control->bad_syncs, left, left - 1));
    return left ? fail(EIO) : 0;
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    return control->is_faulty && sync_fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return control->is_faulty && sync_fails(fd) ? -1 : real(fd);
}

static int is_read_only(int at, const char *path) {
    return control->is_faulty && control->is_read_only && has_path(at, path);
}

#define MODE(flags, mode) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }
#define CHANGES(flags) (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE(flags, mode) \
        REAL(int, #name, const char *, int, ...); \
        return CHANGES(flags) && is_read_only(AT_FDCWD, path) ? fail(EROFS) : real(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        MODE(flags, mode) \
        REAL(int, #name, int, const char *, int, ...); \
        return CHANGES(flags) && is_read_only(at, path) ? fail(EROFS) : real(at, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int ftruncate(int fd, off_t size) {
    REAL(int, "ftruncate", int, off_t);
    return control->is_faulty && control->is_read_only && has_file(fd) ? fail(EROFS) : real(fd, size);
}

int ftruncate64(int fd, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t);
    return control->is_faulty && control->is_read_only && has_file(fd) ? fail(EROFS) : real(fd, size);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    return is_read_only(AT_FDCWD, to) || is_read_only(AT_FDCWD, from) ? fail(EROFS) : real(from, to);
}

int renameat(int from_at, const char *from, int to_at, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    return is_read_only(to_at, to) || is_read_only(from_at, from) ? fail(EROFS) : real(from_at, from, to_at, to);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    return is_read_only(AT_FDCWD, path) ? fail(EROFS) : real(path);
}

int unlinkat(int at, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    return is_read_only(at, path) ? fail(EROFS) : real(at, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    return is_read_only(AT_FDCWD, path) ? fail(EROFS) : real(path, mode);
}
