/* CuPy's element-wise kernels (`cupy_add__float32_float_float32`), run on the CPU from their names.
 *
 * The name has the operation and the types of its operands; a CArray parameter is a pointer, a size,
 * and a shape and strides of each dimension (cupy/_core/include/cupy/carray.cuh); the last parameter
 * is the CIndexer: a size, a shape and an index. A weak Python scalar comes in the array's own type.
 */
#define _GNU_SOURCE
#include "fake.h"
#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OPERANDS_MAX 4
#define DIMENSIONS_MAX 16

enum type { BOOL, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64, FLOAT32, FLOAT64, NONE };

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [BOOL] = {"bool", 1},     [INT8] = {"int8", 1},     [UINT8] = {"uint8", 1},
    [INT16] = {"int16", 2},   [UINT16] = {"uint16", 2}, [INT32] = {"int32", 4},
    [UINT32] = {"uint32", 4}, [INT64] = {"int64", 8},   [UINT64] = {"uint64", 8},
    [FLOAT32] = {"float32", 4}, [FLOAT64] = {"float64", 8},
};

struct operand {
    enum type type;
    bool array;
    const unsigned char *scalar;
    CUdeviceptr data;
    int64_t strides[DIMENSIONS_MAX];
};

struct value { /* one element: as an integer, and as a number */
    int64_t integer;
    double number;
};

static enum type type_of(const char *name, size_t length, size_t bytes) {
    for (unsigned i = 0; i < NONE; i++)
        if (strlen(types[i].name) == length && memcmp(types[i].name, name, length) == 0)
            return (enum type)i;
    if (length == 5 && memcmp(name, "float", 5) == 0)
        return bytes == 4 ? FLOAT32 : bytes == 8 ? FLOAT64 : NONE;
    if (length == 3 && memcmp(name, "int", 3) == 0)
        return bytes == 1   ? INT8
               : bytes == 2 ? INT16
               : bytes == 4 ? INT32
               : bytes == 8 ? INT64
                            : NONE;
    return NONE;
}

#define LOAD(kind)                                                                                 \
    {                                                                                              \
        kind loaded;                                                                               \
        memcpy(&loaded, from, sizeof loaded);                                                      \
        return (struct value){(int64_t)loaded, (double)loaded};                                    \
    }

static struct value load(enum type type, const void *from) {
    switch (type) {
    case BOOL: case UINT8: LOAD(uint8_t)
    case INT8: LOAD(int8_t)
    case INT16: LOAD(int16_t)
    case UINT16: LOAD(uint16_t)
    case INT32: LOAD(int32_t)
    case UINT32: LOAD(uint32_t)
    case INT64: LOAD(int64_t)
    case UINT64: LOAD(uint64_t)
    case FLOAT32: {
        float number;
        memcpy(&number, from, 4);
        return (struct value){isfinite(number) ? (int64_t)number : 0, number};
    }
    default: {
        double number;
        memcpy(&number, from, 8);
        return (struct value){isfinite(number) ? (int64_t)number : 0, number};
    }
    }
}

static void store(enum type type, void *to, struct value value, bool whole) {
    float narrow = (float)(whole ? (double)value.integer : value.number);
    double wide = whole ? (double)value.integer : value.number;
    int64_t integer = whole ? value.integer : (int64_t)value.number;
    uint8_t truth = whole ? value.integer != 0 : value.number != 0;
    if (type == FLOAT32)
        memcpy(to, &narrow, 4);
    else if (type == FLOAT64)
        memcpy(to, &wide, 8);
    else if (type == BOOL)
        memcpy(to, &truth, 1);
    else
        memcpy(to, &integer, types[type].size); /* little-endian: the low bytes */
}

/* Computes with integers where all operands are; sets `whole` to say which half is the result. */
static bool compute(const char *op, const struct value *in, bool *whole, struct value *out) {
    int64_t a = in[0].integer, b = in[1].integer;
    double x = in[0].number, y = in[1].number;
    const struct { const char *name; int64_t integer; double number; } arithmetic[] = {
        {"copy", a, x}, {"add", (int64_t)((uint64_t)a + (uint64_t)b), x + y},
        {"subtract", (int64_t)((uint64_t)a - (uint64_t)b), x - y},
        {"multiply", (int64_t)((uint64_t)a * (uint64_t)b), x * y},
        {"negative", (int64_t)(0 - (uint64_t)a), -x}, {"maximum", a > b ? a : b, fmax(x, y)},
        {"minimum", a < b ? a : b, fmin(x, y)}, {"absolute", a < 0 ? -a : a, fabs(x)},
        {"where", a ? b : in[2].integer, x != 0 ? y : in[2].number},
    };
    const struct { const char *name; int integer, number; } tests[] = {
        {"greater", a > b, x > y}, {"less", a < b, x < y}, {"greater_equal", a >= b, x >= y},
        {"less_equal", a <= b, x <= y}, {"equal", a == b, x == y},
        {"not_equal", a != b, x != y},
    };
    for (size_t i = 0; i < sizeof arithmetic / sizeof *arithmetic; i++)
        if (strcmp(op, arithmetic[i].name) == 0) {
            *out = (struct value){arithmetic[i].integer, arithmetic[i].number};
            return true;
        }
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(op, tests[i].name) == 0) {
            int truth = *whole ? tests[i].integer : tests[i].number;
            *out = (struct value){truth, truth};
            return true;
        }
    *whole = false;
    *out = (struct value){0, strcmp(op, "true_divide") == 0 ? x / y : sqrt(x)};
    return strcmp(op, "true_divide") == 0 || strcmp(op, "sqrt") == 0;
}

struct shape {
    int64_t size, lengths[DIMENSIONS_MAX];
    unsigned dimensions;
};

static CUresult element(const struct operand *operand, const struct shape *shape, int64_t index,
                        char **out) {
    int64_t offset = 0;
    for (unsigned d = shape->dimensions; d-- > 0; index /= shape->lengths[d])
        offset += index % shape->lengths[d] * operand->strides[d];
    *out = memory_storage(operand->data + (CUdeviceptr)offset, types[operand->type].size);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult run_elements(const char *op, struct operand *operands, unsigned count,
                             const struct shape *shape) {
    struct operand *target = &operands[count - 1];
    bool integers = true, arange = strcmp(op, "arange") == 0;
    for (unsigned i = 0; i + 1 < count; i++)
        integers &= operands[i].type < FLOAT32;
    for (int64_t index = 0; index < shape->size; index++) {
        struct value in[OPERANDS_MAX] = {{0, 0}}, result;
        char *at;
        for (unsigned i = 0; i + 1 < count; i++) {
            if (operands[i].array)
                TRY(element(&operands[i], shape, index, &at));
            in[i] = load(operands[i].type, operands[i].array ? at : (char *)operands[i].scalar);
        }
        bool whole = integers;
        if (arange)
            result = (struct value){in[0].integer + index * in[1].integer,
                                    in[0].number + (double)index * in[1].number};
        else if (!compute(op, in, &whole, &result))
            return CUDA_SUCCESS;
        TRY(element(target, shape, index, &at));
        store(target->type, at, result, whole);
    }
    return CUDA_SUCCESS;
}

static uint64_t word_at(const unsigned char *params, size_t offset) {
    uint64_t value;
    memcpy(&value, params + offset, 8);
    return value;
}

static bool shape_read(const struct launch *launch, struct shape *shape) {
    const struct kernel_info *info = launch->function->info;
    const struct param *last = &info->params[info->param_count - 1];
    if (last->size < 8 || last->size % 8 != 0 || (last->size - 8) / 16 > DIMENSIONS_MAX)
        return false;
    shape->size = (int64_t)word_at(launch->params, last->offset);
    shape->dimensions = (last->size - 8) / 16;
    for (unsigned d = 0; d < shape->dimensions; d++)
        shape->lengths[d] = (int64_t)word_at(launch->params, last->offset + 8 + 8 * d);
    return true;
}

static struct operand operand_read(const struct launch *launch, const struct param *param,
                                   const struct shape *shape) {
    struct operand operand = {.type = NONE, .scalar = launch->params + param->offset};
    operand.array = param->size == 16 + 16 * shape->dimensions;
    if (!operand.array)
        return operand;
    operand.data = word_at(launch->params, param->offset);
    for (unsigned d = 0; d < shape->dimensions; d++)
        operand.strides[d] =
            (int64_t)word_at(launch->params, param->offset + 16 + 8 * (shape->dimensions + d));
    return operand;
}

/* `cupy_fill` has no types in its name: the value's size is the element's. */
static CUresult run_fill(const struct launch *launch, const struct shape *shape) {
    const struct param *value = launch->function->info->params;
    struct operand target = operand_read(launch, &value[1], shape);
    for (int64_t index = 0; target.array && index < shape->size; index++) {
        char *at;
        target.type = value->size == 1 ? INT8 : value->size == 2 ? INT16
                    : value->size == 4 ? INT32 : INT64;
        TRY(element(&target, shape, index, &at));
        memcpy(at, launch->params + value->offset, types[target.type].size);
    }
    return CUDA_SUCCESS;
}

CUresult cupy_kernel_run(const struct launch *launch) {
    const struct kernel_info *info = launch->function->info;
    const char *name = info->name + strlen("cupy_"), *rest = strstr(name, "__");
    struct operand operands[OPERANDS_MAX];
    struct shape shape = {0};
    unsigned count = info->param_count - 1;
    if (info->param_count < 2 || count > OPERANDS_MAX || !shape_read(launch, &shape))
        return CUDA_SUCCESS;
    if (strcmp(name, "fill") == 0 && count == 2 && info->params[0].size <= 8)
        return run_fill(launch, &shape);
    if (rest == NULL)
        return CUDA_SUCCESS;
    char *op = strndup(name, (size_t)(rest - name));
    bool known = true;
    rest += 2;
    for (unsigned i = 0; known && i < count; i++) {
        size_t length = strcspn(rest, "_");
        operands[i] = operand_read(launch, &info->params[i], &shape);
        operands[i].type = type_of(rest, length, info->params[i].size);
        known &= operands[i].type != NONE && (rest[length] == '_' || i + 1 == count);
        rest += length + (rest[length] == '_');
    }
    known &= *rest == '\0' && operands[count - 1].array;
    CUresult result = known ? run_elements(op, operands, count, &shape) : CUDA_SUCCESS;
    free(op);
    return result;
}
