// The log of errors: kept here (cuLogs*), given to the program's callbacks, and written where
// CUDA_LOG_FILE says. It has what the servers' drivers refuse, and some of what is refused here.
#define _GNU_SOURCE
#include "base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MESSAGES_MAX 100   // as CUDA's log
#define MESSAGE_SIZE 256   // with its end
#define DUMP_MAX (MESSAGES_MAX * MESSAGE_SIZE)
#define CALLBACKS_MAX 16
#define LEVEL_ERROR 0

struct callback {
    void (*function)(void *data, int level, char *message, size_t size);
    void *data;
};

static char messages[MESSAGES_MAX][MESSAGE_SIZE];
static unsigned written;  // of all time, which is where iterators stand
static struct callback callbacks[CALLBACKS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void write_message(const char *message) {
    const char *path = getenv("CUDA_LOG_FILE");
    if (path == NULL || *path == '\0') return;
    bool out = strcmp(path, "stdout") == 0, err = strcmp(path, "stderr") == 0;
    FILE *file = out ? stdout : err ? stderr : fopen(path, "a");
    if (file == NULL) return;
    fprintf(file, "%s\n", message);
    if (out || err) {
        fflush(file);
    } else {
        fclose(file);
    }
}

void gp_log(const char *format, ...) {
    char text[MESSAGE_SIZE - 64], message[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct timespec now;
    struct tm clock;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &clock);
    snprintf(message, sizeof message, "[%02d:%02d:%02d.%03d][%ld][CUDA][E] %s", clock.tm_hour,
             clock.tm_min, clock.tm_sec, (int)(now.tv_nsec / 1000000), syscall(SYS_gettid), text);
    struct callback told[CALLBACKS_MAX];
    pthread_mutex_lock(&lock);
    strcpy(messages[written++ % MESSAGES_MAX], message);
    memcpy(told, callbacks, sizeof told);
    pthread_mutex_unlock(&lock);
    write_message(message);
    for (int at = 0; at < CALLBACKS_MAX; at++) {
        char own[MESSAGE_SIZE];
        strcpy(own, message);
        if (told[at].function) told[at].function(told[at].data, LEVEL_ERROR, own, strlen(own));
    }
}

void gp_log_status(int status, bool earlier) {
    const char *name = gp_error_name(status), *text = gp_error_text(status);
    gp_log("%s: %s (%d)%s", name == NULL ? "unknown error" : name, text == NULL ? "" : text, status,
           earlier ? ", by an earlier asynchronous call" : "");
}

GP_EXPORT int cuLogsRegisterCallback(void *function, void *data, void **handle) {
    if (function == NULL || handle == NULL) return GP_INVALID_VALUE;
    int status = GP_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    for (int at = 0; at < CALLBACKS_MAX && status != GP_SUCCESS; at++) {
        if (callbacks[at].function != NULL) continue;
        *(void **)&callbacks[at].function = function;
        callbacks[at].data = data;
        *handle = &callbacks[at];
        status = GP_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

GP_EXPORT int cuLogsUnregisterCallback(void *handle) {
    int status = GP_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int at = 0; at < CALLBACKS_MAX; at++) {
        if (handle != &callbacks[at] || callbacks[at].function == NULL) continue;
        callbacks[at] = (struct callback){0};
        status = GP_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

GP_EXPORT int cuLogsCurrent(unsigned *iterator, unsigned flags) {
    if (iterator == NULL || flags != 0) return GP_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *iterator = written;
    pthread_mutex_unlock(&lock);
    return GP_SUCCESS;
}

// The messages from an iterator on, or all, as far as they fit, each with a newline; the oldest go
// first, which a line at the start says. Gives the size, or -1 when no message fits.
static int dump(unsigned *iterator, char *target, size_t room) {
    static const char note[] = "[older messages of the log were left out]\n";
    pthread_mutex_lock(&lock);
    unsigned wanted = iterator == NULL ? 0 : *iterator, first = written;
    size_t size = 0;
    while (first > wanted && written - first < MESSAGES_MAX) {
        size_t with = size + strlen(messages[(first - 1) % MESSAGES_MAX]) + 1;
        if (with + (first - 1 > wanted ? sizeof note : 1) > room) break;
        size = with;
        first--;
    }
    int used = first == written && written > wanted ? -1 : 0;
    if (used == 0 && first > wanted) used = sprintf(target, "%s", note);
    for (; used >= 0 && first < written; first++) {
        used += sprintf(target + used, "%s\n", messages[first % MESSAGES_MAX]);
    }
    if (iterator != NULL) *iterator = written;
    pthread_mutex_unlock(&lock);
    return used;
}

GP_EXPORT int cuLogsDumpToFile(unsigned *iterator, const char *path, unsigned flags) {
    if (path == NULL || flags != 0) return GP_INVALID_VALUE;
    FILE *file = fopen(path, "a");
    char *text = malloc(DUMP_MAX);
    int size = file == NULL || text == NULL ? -1 : dump(iterator, text, DUMP_MAX);
    if (size > 0) fwrite(text, 1, (size_t)size, file);
    if (file != NULL) fclose(file);
    free(text);
    return size < 0 ? GP_INVALID_VALUE : GP_SUCCESS;
}

GP_EXPORT int cuLogsDumpToMemory(unsigned *iterator, char *buffer, size_t *size, unsigned flags) {
    if (buffer == NULL) gp_log("cuLogsDumpToMemory: there is no buffer");
    if (buffer == NULL || size == NULL || flags != 0) return GP_INVALID_VALUE;
    size_t room = *size;
    if (room > 0) *buffer = '\0';
    int used = dump(iterator, buffer, room);
    *size = used < 0 ? 0 : (size_t)used;
    return used < 0 ? GP_INVALID_VALUE : GP_SUCCESS;
}
