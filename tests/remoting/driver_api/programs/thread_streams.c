// Threads that come and go, each with the default stream of its own. Argument: how many.
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

int cuMemsetD32Async(uint64_t, unsigned, size_t, void *), cuStreamQuery(void *);

#define OWN ((void *)2)  // CU_STREAM_PER_THREAD

static void *context;
static uint64_t target;
static pthread_key_t late;

static void *work(void *argument) {
    CHECK(cuCtxSetCurrent(context));
    uintptr_t at = (uintptr_t)argument;
    CHECK(cuMemsetD32Async(target + at * 4, (unsigned)at, 1, OWN));
    return NULL;
}

static void work_late(void *argument) { work(argument); }

// A destructor of the program's may use the stream again after the library's has ended it.
static void *work_to_the_end(void *argument) {
    pthread_setspecific(late, argument);
    return work(argument);
}

static void in_thread(void *(*run)(void *), uintptr_t argument) {
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, run, (void *)argument) == 0);
    NEED(pthread_join(thread, NULL) == 0);
}

static void *fork_and_end(void *argument) {
    work(argument);
    int status;
    pid_t child = fork();
    if (child == 0) pthread_exit(NULL);  // with a stream of its parent's, as the last thread
    NEED(waitpid(child, &status, 0) == child);
    OURS(status == 0);  // CUDA's own library is of no use in a child
    return NULL;
}

int main(int count, char **arguments) {
    NEED(count == 2);
    start(0);
    uintptr_t threads = (uintptr_t)atoi(arguments[1]);
    unsigned *seen = calloc(threads + 3, 4);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuMemAlloc_v2(&target, (threads + 3) * 4));
    CHECK(cuMemsetD8_v2(target, 0, (threads + 3) * 4));
    NEED(cuStreamDestroy_v2(OWN) == 400);
    for (uintptr_t at = 1; at <= threads; at++) in_thread(work, at);
    NEED(pthread_key_create(&late, work_late) == 0);
    in_thread(work_to_the_end, threads + 1);
    in_thread(fork_and_end, threads + 2);
    CHECK(cuMemcpyDtoH_v2(seen, target, (threads + 3) * 4));  // behind streams that have ended, too
    for (uintptr_t at = 1; at <= threads + 2; at++) NEED(seen[at] == at);
    puts("results right");
    return 0;
}
