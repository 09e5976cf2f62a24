// Executable graphs: their kernel nodes changed, and their launches. launch.c says how records are issued.
#include "launcher.h"

#include <string.h>

#include "generated_records.h"

// In CUgraphNodeParams, as node_params.py has it.
#define PARAMS_SIZE 256
#define TYPE_KERNEL 0
enum { AT_TYPE = 0, AT_FUNCTION = 16, AT_PARAMETERS = 56, AT_EXTRA = 64, AT_KERNEL = 72, AT_CONTEXT = 80 };

static uint64_t word_at(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static void put_word(unsigned char *at, uint64_t word) { memcpy(at, &word, sizeof word); }

// As Translator of node_params.py, for kernels: handles and addresses in place of the client's.
static bool translate(const struct launcher *launcher, unsigned char *params, const unsigned char *bytes,
                      uint64_t size) {
    int32_t type;
    memcpy(&type, params + AT_TYPE, sizeof type);
    if (type != TYPE_KERNEL) return false;
    const struct entry *function = find(&launcher->functions, word_at(params + AT_FUNCTION));
    if (function == NULL || size != function->length) return false;
    uint64_t device = word_at(params + AT_CONTEXT);  // 0: the current one
    void *context;
    if (!get(&launcher->contexts, device != 0 ? device : launcher->device + 1, &context)) return false;
    memcpy(function->bytes, bytes, size);
    put_word(params + AT_FUNCTION, function->kernel ? 0 : function->handle);
    put_word(params + AT_PARAMETERS, (uint64_t)(uintptr_t)function->pointers);
    put_word(params + AT_EXTRA, 0);
    put_word(params + AT_KERNEL, function->kernel ? function->handle : 0);
    put_word(params + AT_CONTEXT, (uint64_t)(uintptr_t)context);
    return true;
}

static bool set_node(const struct launcher *launcher, const unsigned char *at, size_t size, int *status) {
    uint64_t words[3], params[PARAMS_SIZE / 8];
    if (launcher->driver.set_node == NULL || size < sizeof words + sizeof params) return false;
    memcpy(words, at, sizeof words);  // node, executable, bytes behind the parameters
    if (words[2] > size - sizeof words - sizeof params) return false;
    void *node, *executable;
    if (!get(&launcher->nodes, words[0], &node)) return false;
    if (!get(&launcher->executables, words[1], &executable)) return false;
    memcpy(params, at + sizeof words, sizeof params);
    const unsigned char *bytes = at + sizeof words + sizeof params;
    if (!translate(launcher, (unsigned char *)params, bytes, words[2])) return false;
    *status = launcher->driver.set_node(executable, node, params);
    return true;
}

static bool launch_graph(const struct launcher *launcher, const unsigned char *at, size_t size, int *status) {
    void *executable, *stream;
    if (launcher->driver.launch_graph == NULL || size < 16) return false;
    if (is_kept(launcher)) return false;  // it may have host functions
    if (!get(&launcher->executables, word_at(at), &executable)) return false;
    if (!get(&launcher->streams, word_at(at + 8), &stream)) return false;
    *status = launcher->driver.launch_graph(executable, stream);
    return true;
}

bool issue_graph(const struct launcher *launcher, const unsigned char *at, struct head head, int *status) {
    size_t size = head.size - sizeof head;
    if (head.op == GP_GRAPH_SET) return set_node(launcher, at, size, status);
    return launch_graph(launcher, at, size, status);
}
