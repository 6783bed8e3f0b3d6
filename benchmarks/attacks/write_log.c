/* Records what a process does to the files under one folder, in order and with all data, or kills the process at one
 * of these moments. Loaded with LD_PRELOAD; asleep until `write_log_begin` is called (by ctypes, in a forked child).
 *
 * A record is a `struct record`, two paths and data. Each call and its record happen under one lock, so that the order
 * of the log is the order of the calls, whatever threads there are. Writes through mmap are not seen: only SQLite's
 * -shm file has them, which never needs to outlast a process. What else might escape is found by the replay, which
 * compares its end with the real folder. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct record {
    char kind, unused[3];
    uint32_t mode;
    uint64_t inode;
    int64_t offset;
    uint32_t path_length, target_length;
    uint64_t data_length;
};

enum { BEFORE, AFTER, HALFWAY };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int active, log_fd = -1, report_fd = -1, kill_how;
static long calls, kill_at;

void write_log_begin(const char *folder, int log, int report, long at, int how) {
    snprintf(root, sizeof root, "%s/", folder);
    root_length = strlen(root);
    log_fd = log, report_fd = report, calls = 0, kill_at = at, kill_how = how;
    active = 1;
}

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static int enter(void) { /* returns whether this call is the one to die at */
    pthread_mutex_lock(&lock);
    int now = ++calls == kill_at;
    if (now && kill_how == BEFORE) die();
    return now;
}

static void leave(int now) {
    if (now) die();
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
}

static void put(const void *bytes, size_t length) {
    while (length) {
        long n = syscall(SYS_write, log_fd, bytes, length);
        if (n <= 0) abort();
        bytes = (const char *)bytes + n, length -= n;
    }
}

static void note(char kind, uint64_t inode, int64_t offset, uint32_t mode, const char *path, const char *target,
                 const void *data, size_t length) {
    if (log_fd < 0) return;
    int saved = errno;
    struct record r = {kind, {0}, mode, inode, offset, strlen(path), strlen(target), length};
    put(&r, sizeof r), put(path, r.path_length), put(target, r.target_length), put(data, length);
    errno = saved;
}

static void absolute(int folder, const char *path, char *out) {
    char base[PATH_MAX], link[64] = "/proc/self/cwd";
    if (path[0] == '/' || path[0] == 0) {
        snprintf(out, PATH_MAX, "%s", path);
        return;
    }
    if (folder != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, base, sizeof base - 1);
    snprintf(out, PATH_MAX, "%.*s/%s", n < 0 ? 0 : (int)n, base, path);
}

static int inside(const char *path) {
    size_t length = strlen(path);
    return strncmp(path, root, length < root_length ? root_length - 1 : root_length) == 0 && length >= root_length - 1;
}

/* Whether a descriptor is a file or folder under the root, and which. */
static int known(int fd, struct stat *s, char *path) {
    char link[64];
    int saved = errno;
    int found = fstat(fd, s) == 0 && (S_ISREG(s->st_mode) || S_ISDIR(s->st_mode));
    if (found) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, PATH_MAX - 1);
        path[n < 0 ? 0 : n] = 0;
        found = inside(path);
    }
    errno = saved;
    return found;
}

/* Opening: only what makes or empties a file is of interest. */

static int opened(int folder, const char *name, int flags, mode_t mode) {
    static int (*real)(int, const char *, int, ...);
    if (!real) real = dlsym(RTLD_NEXT, "openat");
    char path[PATH_MAX];
    if (!active || !(flags & (O_CREAT | O_TRUNC | O_TMPFILE) & ~O_DIRECTORY)) return real(folder, name, flags, mode);
    absolute(folder, name, path);
    if (!inside(path)) return real(folder, name, flags, mode);
    int now = enter();
    struct stat s;
    int unnamed = (flags & O_TMPFILE) == O_TMPFILE, there = !unnamed && stat(path, &s) == 0;
    int fd = real(folder, name, flags, mode);
    if (fd >= 0 && fstat(fd, &s) == 0) {
        if (!there) note('C', s.st_ino, 0, s.st_mode & 07777, unnamed ? "" : path, "", 0, 0);
        else if (flags & O_TRUNC) note('T', s.st_ino, 0, 0, "", "", 0, 0);
    }
    leave(now);
    return fd;
}

#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); mode = va_arg(a, mode_t); va_end(a); }
int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* Writing. */

static void note_written(int fd, uint64_t inode, int64_t offset, ssize_t n) {
    char link[64], *data = malloc(n > 0 ? n : 1);
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int again = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY);
    if (again < 0 || syscall(SYS_pread64, again, data, n, offset) != n) abort();
    syscall(SYS_close, again);
    note('W', inode, offset, 0, "", "", data, n);
    free(data);
    errno = saved;
}

static ssize_t written(int fd, const void *data, size_t size, int64_t offset) {
    struct stat s;
    char path[PATH_MAX];
    long at = offset >= 0;
    if (active && fd == report_fd) {
        int now = enter();
        ssize_t n = syscall(SYS_write, fd, data, size);
        note('P', 0, 0, 0, "", "", data, n > 0 ? n : 0);
        leave(now);
        return n;
    }
    if (!active || !known(fd, &s, path))
        return at ? syscall(SYS_pwrite64, fd, data, size, offset) : syscall(SYS_write, fd, data, size);
    int now = enter();
    size_t part = now && kill_how == HALFWAY ? size / 2 : size;
    ssize_t n = at ? syscall(SYS_pwrite64, fd, data, part, offset) : syscall(SYS_write, fd, data, part);
    if (n > 0) note('W', s.st_ino, at ? offset : lseek(fd, 0, SEEK_CUR) - n, 0, "", "", data, n);
    leave(now);
    return n;
}

ssize_t write(int fd, const void *data, size_t size) { return written(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return written(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return written(fd, data, size, offset); }

#define WRITTEN_BY_OTHERS(fd, call, offset_after)                      \
    struct stat s;                                                     \
    char path[PATH_MAX];                                               \
    if (!active || !known(fd, &s, path)) return call;                  \
    int now = enter();                                                 \
    ssize_t n = call;                                                  \
    if (n > 0) note_written(fd, s.st_ino, (offset_after) - n, n);      \
    leave(now);                                                        \
    return n;

ssize_t writev(int fd, const struct iovec *parts, int count) {
    WRITTEN_BY_OTHERS(fd, REAL(writev)(fd, parts, count), lseek(fd, 0, SEEK_CUR))
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    WRITTEN_BY_OTHERS(fd, REAL(pwritev)(fd, parts, count, offset), offset + n)
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    WRITTEN_BY_OTHERS(fd, REAL(pwritev64)(fd, parts, count, offset), offset + n)
}
ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    WRITTEN_BY_OTHERS(out, REAL(sendfile)(out, in, offset, count), lseek(out, 0, SEEK_CUR))
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) {
    WRITTEN_BY_OTHERS(out, REAL(sendfile64)(out, in, offset, count), lseek(out, 0, SEEK_CUR))
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t count, unsigned flags) {
    WRITTEN_BY_OTHERS(out, REAL(copy_file_range)(in, from, out, to, count, flags), to ? *to : lseek(out, 0, SEEK_CUR))
}

#define RESIZED(fd, call)                                              \
    struct stat s;                                                     \
    char path[PATH_MAX];                                               \
    if (!active || !known(fd, &s, path)) return call;                  \
    int now = enter();                                                 \
    int result = call;                                                 \
    if (result == 0 && fstat(fd, &s) == 0) note('T', s.st_ino, s.st_size, 0, "", "", 0, 0); \
    leave(now);                                                        \
    return result;

int ftruncate(int fd, off_t size) { RESIZED(fd, REAL(ftruncate)(fd, size)) }
int ftruncate64(int fd, off64_t size) { RESIZED(fd, REAL(ftruncate64)(fd, size)) }
int posix_fallocate(int fd, off_t offset, off_t size) { RESIZED(fd, REAL(posix_fallocate)(fd, offset, size)) }
int posix_fallocate64(int fd, off64_t offset, off64_t size) { RESIZED(fd, REAL(posix_fallocate64)(fd, offset, size)) }
int fallocate(int fd, int how, off_t offset, off_t size) { RESIZED(fd, REAL(fallocate)(fd, how, offset, size)) }
int fallocate64(int fd, int how, off64_t offset, off64_t size) { RESIZED(fd, REAL(fallocate64)(fd, how, offset, size)) }

#define SYNCED(fd, call)                                               \
    struct stat s;                                                     \
    char path[PATH_MAX];                                               \
    if (!active || !known(fd, &s, path)) return call;                  \
    int now = enter();                                                 \
    int result = call;                                                 \
    if (result == 0) note(S_ISDIR(s.st_mode) ? 'D' : 'S', s.st_ino, 0, 0, path, "", 0, 0); \
    leave(now);                                                        \
    return result;

int fsync(int fd) { SYNCED(fd, REAL(fsync)(fd)) }
int fdatasync(int fd) { SYNCED(fd, REAL(fdatasync)(fd)) }

/* Names. */

#define NAMED(kind, folder, name, to_folder, to_name, inode_flags, call)       \
    char path[PATH_MAX], target[PATH_MAX];                                    \
    if (!active) return call;                                                 \
    absolute(folder, name, path), absolute(to_folder, to_name, target);       \
    if (!inside(path) && !inside(target)) return call;                        \
    int now = enter();                                                        \
    struct stat s = {0};                                                      \
    fstatat(AT_FDCWD, path, &s, inode_flags);                                 \
    int result = call;                                                        \
    if (result == 0) note(kind, s.st_ino, 0, s.st_mode & 07777, path, target, 0, 0); \
    leave(now);                                                               \
    return result;

int rename(const char *a, const char *b) { NAMED('R', AT_FDCWD, a, AT_FDCWD, b, AT_SYMLINK_NOFOLLOW, REAL(rename)(a, b)) }
int renameat(int f, const char *a, int g, const char *b) { NAMED('R', f, a, g, b, AT_SYMLINK_NOFOLLOW, REAL(renameat)(f, a, g, b)) }
int renameat2(int f, const char *a, int g, const char *b, unsigned how) {
    NAMED('R', f, a, g, b, AT_SYMLINK_NOFOLLOW, REAL(renameat2)(f, a, g, b, how))
}
int link(const char *a, const char *b) { NAMED('L', AT_FDCWD, a, AT_FDCWD, b, AT_SYMLINK_NOFOLLOW, REAL(link)(a, b)) }
int linkat(int f, const char *a, int g, const char *b, int flags) {
    NAMED('L', f, a, g, b, flags & AT_SYMLINK_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW, REAL(linkat)(f, a, g, b, flags))
}
int unlink(const char *a) { NAMED('U', AT_FDCWD, a, AT_FDCWD, "", AT_SYMLINK_NOFOLLOW, REAL(unlink)(a)) }
int unlinkat(int f, const char *a, int flags) { NAMED('U', f, a, AT_FDCWD, "", AT_SYMLINK_NOFOLLOW, REAL(unlinkat)(f, a, flags)) }
int rmdir(const char *a) { NAMED('U', AT_FDCWD, a, AT_FDCWD, "", AT_SYMLINK_NOFOLLOW, REAL(rmdir)(a)) }

static int made(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    if (!active) return REAL(mkdirat)(folder, name, mode);
    absolute(folder, name, path);
    if (!inside(path)) return REAL(mkdirat)(folder, name, mode);
    int now = enter();
    int result = REAL(mkdirat)(folder, name, mode);
    if (result == 0) note('M', 0, 0, mode, path, "", 0, 0);
    leave(now);
    return result;
}
int mkdir(const char *name, mode_t mode) { return made(AT_FDCWD, name, mode); }
int mkdirat(int folder, const char *name, mode_t mode) { return made(folder, name, mode); }
