// What the door answers by itself: settings and questions that have no effect on any server.
#include "check.h"

#include <unistd.h>

int cuCoredumpGetAttribute(int, void *, size_t *), cuCoredumpSetAttribute(int, void *, size_t *);
int cuCoredumpGetAttributeGlobal(int, void *, size_t *);
int cuCoredumpSetAttributeGlobal(int, void *, size_t *);
int cuDeviceGetHostAtomicCapabilities(unsigned *, const int *, unsigned, int);
int cuDeviceRegisterAsyncNotification(int, void (*)(void *, void *, void *), void *, void **);
int cuDeviceUnregisterAsyncNotification(int, void *);
int cuCtxGetExecAffinity(void *, int), cuProfilerInitialize(const char *, const char *, int);
int cuLibraryLoadData(void **, const void *, void *, void **, unsigned, void *, void **, unsigned);
int cuLibraryLoadFromFile(void **, const char *, void *, void **, unsigned, void *, void **,
                          unsigned);
int cuLibraryGetUnifiedFunction(void **, void *, const char *);

enum { ON_EXCEPTION = 1, TRIGGER_HOST, LIGHTWEIGHT, USER_TRIGGER, DUMP_FILE, PIPE, FLAGS };

static void never(void *info, void *data, void *handle) {
    (void)info, (void)data, (void)handle;
    exit(1);
}

static void dumps(void) {
    char text[2000], name[] = "/tmp/mine", expected[300], host[200];
    bool value = true, yes = true;
    unsigned flags = 9;
    size_t size = sizeof value, whole = 0;
    CHECK(cuCoredumpGetAttribute(ON_EXCEPTION, &value, &size));
    NEED(!value);
    CHECK(cuCoredumpGetAttribute(TRIGGER_HOST, &value, &size));
    NEED(value);
    CHECK(cuCoredumpGetAttributeGlobal(DUMP_FILE, NULL, &whole));
    NEED(whole == 1024);
    size = sizeof text;
    CHECK(cuCoredumpGetAttributeGlobal(PIPE, text, &size));
    gethostname(host, sizeof host);
    snprintf(expected, sizeof expected, "corepipe.cuda.%s.%d", host, (int)getpid());
    NEED(strcmp(text, expected) == 0);
    size = 5;
    NEED(cuCoredumpGetAttributeGlobal(PIPE, text, &size) == 1);
    // For all contexts, and for this one against that.
    size = sizeof name;
    CHECK(cuCoredumpSetAttributeGlobal(DUMP_FILE, name, &size));
    size = sizeof text;
    CHECK(cuCoredumpGetAttribute(DUMP_FILE, text, &size));
    NEED(strcmp(text, name) == 0);
    size = 4;
    CHECK(cuCoredumpSetAttribute(DUMP_FILE, "here", &size));
    size = sizeof text;
    CHECK(cuCoredumpGetAttribute(DUMP_FILE, text, &size));
    NEED(strcmp(text, "here") == 0);
    CHECK(cuCoredumpGetAttributeGlobal(DUMP_FILE, text, &size));
    NEED(strcmp(text, name) == 0);
    size = sizeof yes;
    CHECK(cuCoredumpSetAttribute(LIGHTWEIGHT, &yes, &size));
    size = sizeof flags;
    CHECK(cuCoredumpGetAttribute(FLAGS, &flags, &size));
    NEED(flags == 0x2f);
    memset(text, 'x', sizeof text);
    size = sizeof text;
    NEED(cuCoredumpSetAttribute(DUMP_FILE, text, &size) == 1);
    NEED(cuCoredumpGetAttribute(8, text, &size) == 1 && cuCoredumpGetAttribute(0, text, &size) == 1);
    size = 1;
    NEED(cuCoredumpSetAttribute(FLAGS, &flags, &size) == 1);
}

int main(int count, char **arguments) {
    const int operations[2] = {0, 12};
    unsigned found[2] = {9, 9}, affinity[2];
    void *one, *two, *library, *function;
    NEED(count == 2);
    OURS(cuProfilerInitialize("a", "b", 0) == 3);
    start(0);
    dumps();
    CHECK(cuDeviceGetHostAtomicCapabilities(found, operations, 2, 0));
    NEED(found[0] == 0 && found[1] == 0);
    NEED(cuDeviceGetHostAtomicCapabilities(found, operations, 2, 1) == 101);
    NEED(cuDeviceGetHostAtomicCapabilities(found, NULL, 2, 0) == 1);
    CHECK(cuDeviceRegisterAsyncNotification(0, never, NULL, &one));
    CHECK(cuDeviceRegisterAsyncNotification(0, never, NULL, &two));
    CHECK(cuDeviceUnregisterAsyncNotification(0, one));
    NEED(cuDeviceUnregisterAsyncNotification(0, one) == 1);
    CHECK(cuDeviceUnregisterAsyncNotification(0, two));
    NEED(cuDeviceRegisterAsyncNotification(0, NULL, NULL, &one) == 1);
    CHECK(cuCtxGetExecAffinity(affinity, 0));
    NEED(cuCtxGetExecAffinity(affinity, 1) == 1);
    CHECK(cuLibraryLoadFromFile(&library, arguments[1], NULL, NULL, 0, NULL, NULL, 0));
    NEED(cuLibraryGetUnifiedFunction(&function, library, "f") == 500);
    NEED(cuLibraryGetUnifiedFunction(&function, library, NULL) == 1);
    OURS(cuProfilerInitialize("a", "b", 0) == 801);
    puts("results right");
    return 0;
}
