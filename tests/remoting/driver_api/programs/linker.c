// The linker behind the door. Arguments: PTX with the kernels of fake_cuda/kernels/test_kernels.cu;
// "texts" if its logs are those of the driver without a GPU.
#include "check.h"

int cuLinkCreate_v2(unsigned, int *, void **, void **);
int cuLinkAddData_v2(void *, int, void *, size_t, const char *, unsigned, int *, void **);
int cuLinkAddFile_v2(void *, int, const char *, unsigned, int *, void **);
int cuLinkComplete(void *, void **, size_t *), cuLinkDestroy(void *);

int cuModuleLoadDataEx(void **, const void *, unsigned, int *, void **);
int cuLibraryLoadData(void **, const void *, int *, void **, unsigned, void *, void **, unsigned);
int cuLibraryUnload(void *);

// What the compiler says of a module, and of what is none; a cubin needs no compiler.
static void compiled(const char *path, bool texts) {
    int options[] = {0, 3, 4, 5, 6, 7};
    char info[64], error[8], *text = calloc(1, 1 << 20);
    void *module, *values[] = {(void *)32, info, (void *)sizeof info, error, (void *)sizeof error,
                               (void *)3};
    FILE *file = fopen(path, "r");
    NEED(file != NULL && fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    for (int library = 0; library < 2; library++) {
        values[2] = (void *)sizeof info;
        values[4] = (void *)sizeof error;
        if (library) {
            CHECK(cuLibraryLoadData(&module, text, options, values, 6, NULL, NULL, 0));
            CHECK(cuLibraryUnload(module));
        } else {
            CHECK(cuModuleLoadDataEx(&module, text, 6, options, values));
            CHECK(cuModuleUnload(module));
        }
        if (texts) {
            NEED(strstr(info, "32 registers") != NULL && (size_t)values[2] == strlen(info) + 1);
            NEED(error[0] == '\0' && values[4] == NULL);
        }
        values[2] = (void *)sizeof info;
        values[4] = (void *)sizeof error;
        NEED(cuModuleLoadDataEx(&module, "no code", 6, options, values) != 0);
        if (texts) {
            NEED(info[0] == '\0' && strcmp(error, "fatal: ") == 0);  // as much as there is room for
            NEED((size_t)values[4] == sizeof error);
        }
    }
    free(text);
}

int main(int count, char **words) {
    bool texts = count == 3;
    int options[] = {0, 5, 6, 7}, number = 41, n = 1;
    char log[16] = "not empty", text[] = ".version 8.0\n";
    void *values[] = {(void *)64, log, (void *)sizeof log, (void *)3};
    void *context, *state, *image, *module, *kernel;
    size_t size = 0;
    uint64_t where;
    NEED(count >= 2);
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuLinkCreate_v2(4, options, values, &state));
    OURS(log[0] == '\0');
    NEED(cuLinkAddFile_v2(state, 1, "/no/such/file", 0, NULL, NULL) == 301);
    NEED(cuLinkAddData_v2(state, 99, text, sizeof text, "x", 0, NULL, NULL) == 1);
    CHECK(cuLinkAddFile_v2(state, 1, words[1], 0, NULL, NULL));
    CHECK(cuLinkComplete(state, &image, &size));
    NEED(size > 1000);
    CHECK(cuModuleLoadData(&module, image));
    OURS(log[0] == '\0');
    CHECK(cuLinkDestroy(state));
    OURS(cuLinkDestroy(state) == 400);
    CHECK(cuModuleGetFunction(&kernel, module, "increment"));
    CHECK(cuMemAlloc_v2(&where, sizeof number));
    CHECK(cuMemcpyHtoD_v2(where, &number, sizeof number));
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, (void *[]){&where, &n}, NULL));
    CHECK(cuMemcpyDtoH_v2(&number, where, sizeof number));
    NEED(number == 42);

    // The server's driver says what it cannot link, here text for a cubin, but may link nothing.
    CHECK(cuLinkCreate_v2(0, NULL, NULL, &state));
    CHECK(cuLinkComplete(state, &image, &size));
    CHECK(cuLinkDestroy(state));
    values[2] = (void *)sizeof log;
    CHECK(cuLinkCreate_v2(4, options, values, &state));
    CHECK(cuLinkAddFile_v2(state, 1, words[1], 0, NULL, NULL));
    NEED(cuLinkAddData_v2(state, 0, text, sizeof text, "cubin", 0, NULL, NULL) != 0);
    if (texts) NEED(strncmp(log, "fatal: error", 12) == 0);
    CHECK(cuLinkDestroy(state));
    compiled(words[1], texts);
    puts("results right");
    return 0;
}
