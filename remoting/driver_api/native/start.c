// The start of a program that ends with this process. Python can run nothing of its own between fork and
// exec where other threads may hold a lock, and starting a Python to do it takes 20 ms of each program.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST_OTHER_FILE 3
#define CLOSE_ON_EXEC 4U  // CLOSE_RANGE_CLOEXEC, which older headers lack
#define FILES_MAX 65536

__attribute__((visibility("default"))) int gp_start_tied(const char *program, char *const *arguments,
                                                         char *const *environment, int death_signal);

static void close_on_exec(int file) {
    int flags = fcntl(file, F_GETFD);
    if (flags >= 0) fcntl(file, F_SETFD, flags | FD_CLOEXEC);
}

static void close_others_on_exec(void) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, FIRST_OTHER_FILE, ~0U, CLOSE_ON_EXEC) == 0) return;
#endif
    long limit = sysconf(_SC_OPEN_MAX);
    if (limit < 0 || limit > FILES_MAX) limit = FILES_MAX;
    for (int file = FIRST_OTHER_FILE; file < limit; file++) close_on_exec(file);
}

// In the new process, which has one thread: only functions that are safe in a signal's handler.
static _Noreturn void become(const char *program, char *const *arguments, char *const *environment,
                             int death_signal, pid_t parent, int failure) {
    signal(SIGPIPE, SIG_DFL);  // Python ignores these two
    signal(SIGXFSZ, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0);
    if (getppid() != parent) raise(death_signal);  // it ended before the kernel was asked
    close_others_on_exec();
    execve(program, arguments, environment);
    int why = errno;
    while (write(failure, &why, sizeof why) < 0 && errno == EINTR) continue;
    _exit(127);
}

// Return the number of the process, or the negated error. The kernel watches the calling thread.
int gp_start_tied(const char *program, char *const *arguments, char *const *environment, int death_signal) {
    int failure[2];
    if (pipe2(failure, O_CLOEXEC) != 0) return -errno;
    pid_t parent = getpid();
    pid_t child = fork();
    if (child == 0) become(program, arguments, environment, death_signal, parent, failure[1]);
    int why = child < 0 ? errno : 0;
    close(failure[1]);
    if (child > 0) {
        ssize_t got;
        do {
            got = read(failure[0], &why, sizeof why);  // it ends once the program is executed
        } while (got < 0 && errno == EINTR);
        if (got != (ssize_t)sizeof why) why = 0;
        if (why != 0) {
            while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
        }
    }
    close(failure[0]);
    return why != 0 ? -why : child;
}
