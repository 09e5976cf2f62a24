/* Images without a length: fatbin wrappers, fatbins and cubins, down to kernels and variables. */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
#define ENTRY_PTX 1
#define ENTRY_CUBIN 2
#define FLAG_LZ4 0x2000u
#define FLAG_ZSTD 0x8000u
#define MACHINE_CUDA 190
#define SYMBOL_IS_KERNEL 0x10 /* STO_CUDA_ENTRY in st_other */
#define SYMBOL_IS_MANAGED 0x04

struct wrapper {
    uint32_t magic, version;
    const void *data;
    const void *names;
};

struct fatbin {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};

struct fatbin_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t payload_bytes;
    uint32_t compressed_bytes, options;
    uint16_t minor, major;
    uint32_t arch, name_offset, name_bytes;
    uint64_t flags, reserved;
    uint64_t unpacked_bytes;
};

/* ---- building an image ---- */

static void *grow(void *array, unsigned count, size_t element) {
    if (count != 0 && (count < 8 || (count & (count - 1)) != 0))
        return array;
    unsigned room = count < 8 ? 8 : count * 2;
    array = realloc(array, room * element);
    if (array == NULL)
        abort();
    return array;
}

struct kernel_info *image_add_kernel(struct image *image, const char *name, size_t length) {
    image->kernels = grow(image->kernels, image->kernel_count, sizeof *image->kernels);
    struct kernel_info *kernel = &image->kernels[image->kernel_count++];
    *kernel = (struct kernel_info){.name = strndup(name, length), .threads_max = 1024,
                                   .registers = 16};
    return kernel;
}

struct global_info *image_add_global(struct image *image, const char *name, size_t length) {
    image->globals = grow(image->globals, image->global_count, sizeof *image->globals);
    struct global_info *global = &image->globals[image->global_count++];
    *global = (struct global_info){.name = strndup(name, length), .align = 1};
    return global;
}

void image_add_reference(struct image *image, const char *name, size_t length, bool surface) {
    image->references = grow(image->references, image->reference_count, sizeof *image->references);
    image->references[image->reference_count++] =
        (struct reference_info){.name = strndup(name, length), .surface = surface};
}

void image_add_param(struct kernel_info *kernel, unsigned index, uint32_t offset, uint32_t size) {
    if (index >= kernel->param_count) {
        kernel->params = realloc(kernel->params, (index + 1) * sizeof *kernel->params);
        if (kernel->params == NULL)
            abort();
        memset(&kernel->params[kernel->param_count], 0,
               (index + 1 - kernel->param_count) * sizeof *kernel->params);
        kernel->param_count = index + 1;
    }
    kernel->params[index] = (struct param){offset, size};
    if (offset + size > kernel->param_bytes)
        kernel->param_bytes = offset + size;
}

/* ---- cubins ---- */

struct cubin {
    const unsigned char *bytes;
    const Elf64_Ehdr *header;
    const Elf64_Shdr *sections;
    const char *names;
    const Elf64_Sym *symbols;
    size_t symbol_count;
    const char *strings;
};

size_t image_cubin_bytes(const unsigned char *elf) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)elf;
    size_t end = header->e_shoff + (size_t)header->e_shnum * sizeof(Elf64_Shdr);
    size_t programs = header->e_phoff + (size_t)header->e_phnum * sizeof(Elf64_Phdr);
    return programs > end ? programs : end;
}

static const char *section_name(const struct cubin *cubin, unsigned index) {
    return index < cubin->header->e_shnum ? cubin->names + cubin->sections[index].sh_name : "";
}

static const Elf64_Shdr *section_find(const struct cubin *cubin, const char *prefix,
                                      const char *kernel) {
    size_t length = strlen(prefix);
    for (unsigned i = 0; i < cubin->header->e_shnum; i++) {
        const char *name = section_name(cubin, i);
        if (strncmp(name, prefix, length) == 0 && strcmp(name + length, kernel) == 0)
            return &cubin->sections[i];
    }
    return NULL;
}

static bool cubin_open(struct cubin *cubin, const unsigned char *elf, size_t length) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)elf;
    if (length < sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != MACHINE_CUDA ||
        header->e_shstrndx >= header->e_shnum || image_cubin_bytes(elf) > length)
        return false;
    *cubin = (struct cubin){.bytes = elf, .header = header};
    cubin->sections = (const Elf64_Shdr *)(elf + header->e_shoff);
    for (unsigned i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *section = &cubin->sections[i];
        if (section->sh_type != SHT_NOBITS && section->sh_offset + section->sh_size > length)
            return false;
        if (section->sh_type == SHT_SYMTAB && section->sh_link < header->e_shnum) {
            cubin->symbols = (const Elf64_Sym *)(elf + section->sh_offset);
            cubin->symbol_count = section->sh_size / sizeof(Elf64_Sym);
            cubin->strings = (const char *)elf + cubin->sections[section->sh_link].sh_offset;
        }
    }
    cubin->names = (const char *)elf + cubin->sections[header->e_shstrndx].sh_offset;
    return cubin->symbols != NULL;
}

/* ELF of ABI version 8 and later has the architecture in the second byte of the flags. */
static int cubin_arch(const Elf64_Ehdr *header) {
    bool newer = header->e_ident[EI_ABIVERSION] >= 8;
    return (int)(newer ? (header->e_flags >> 8) & 0xff : header->e_flags & 0xff);
}

struct info_record {
    unsigned char format, attribute;
    uint16_t size;
};

enum info_attribute {
    INFO_MAX_THREADS = 0x05, INFO_PARAM_BANK = 0x0a, INFO_REQUIRED_THREADS = 0x10,
    INFO_FRAME_SIZE = 0x11, INFO_PARAM = 0x17, INFO_PARAM_BYTES = 0x19, INFO_REGISTERS = 0x2f,
    INFO_CLUSTER = 0x3d, INFO_PARAM_LARGE = 0x45
};

static uint32_t word(const unsigned char *bytes, unsigned index) {
    uint32_t value;
    memcpy(&value, bytes + index * 4, 4);
    return value;
}

static uint16_t half(const unsigned char *bytes, unsigned index) {
    uint16_t value;
    memcpy(&value, bytes + index * 2, 2);
    return value;
}

static int threads_product(const unsigned char *data) {
    return (int)(word(data, 0) * word(data, 1) * word(data, 2));
}

static void info_apply(struct kernel_info *kernel, unsigned attribute, const unsigned char *data,
                       unsigned size) {
    if (attribute == INFO_PARAM && size >= 12)
        image_add_param(kernel, half(data, 2), half(data, 3), word(data, 2) >> 18);
    else if (attribute == INFO_PARAM_LARGE && size >= 12)
        image_add_param(kernel, half(data, 2), half(data, 3), half(data, 4));
    else if (attribute == INFO_MAX_THREADS && size >= 12)
        kernel->threads_max = threads_product(data);
    else if (attribute == INFO_REQUIRED_THREADS && size >= 12)
        kernel->threads_max = threads_product(data);
    else if (attribute == INFO_CLUSTER && size >= 12)
        for (unsigned i = 0; i < 3; i++)
            kernel->cluster[i] = (int)word(data, i);
}

/* Calls `apply` for each record of an .nv.info section. */
static void info_walk(const struct cubin *cubin, const Elf64_Shdr *section, void *target,
                      void (*apply)(void *, unsigned, const unsigned char *, unsigned)) {
    const unsigned char *at = cubin->bytes + section->sh_offset, *end = at + section->sh_size;
    while (at + 4 <= end) {
        struct info_record record;
        memcpy(&record, at, 4);
        unsigned size = record.format == 4 ? record.size : 0;
        if (at + 4 + size > end)
            return;
        apply(target, record.attribute, at + 4, size);
        at += 4 + size;
    }
}

static void apply_to_kernel(void *target, unsigned attribute, const unsigned char *data,
                            unsigned size) {
    info_apply(target, attribute, data, size);
}

struct image_and_cubin {
    struct image *image;
    const struct cubin *cubin;
};

/* The records of the whole image name their kernel by its symbol's index. */
static void apply_to_image(void *target, unsigned attribute, const unsigned char *data,
                           unsigned size) {
    const struct image_and_cubin *both = target;
    if ((attribute != INFO_REGISTERS && attribute != INFO_FRAME_SIZE) || size < 8 ||
        word(data, 0) >= both->cubin->symbol_count)
        return;
    const char *name = both->cubin->strings + both->cubin->symbols[word(data, 0)].st_name;
    for (unsigned i = 0; i < both->image->kernel_count; i++) {
        struct kernel_info *kernel = &both->image->kernels[i];
        if (strcmp(kernel->name, name) != 0)
            continue;
        if (attribute == INFO_REGISTERS)
            kernel->registers = (int)word(data, 1);
        else
            kernel->local_bytes = (int)word(data, 1);
    }
}

static void cubin_add_kernel(struct image *image, const struct cubin *cubin, const char *name) {
    struct kernel_info *kernel = image_add_kernel(image, name, strlen(name));
    const Elf64_Shdr *info = section_find(cubin, ".nv.info.", name);
    if (info != NULL)
        info_walk(cubin, info, kernel, apply_to_kernel);
    const Elf64_Shdr *shared = section_find(cubin, ".nv.shared.", name);
    /* From sm_90 on the section begins with what the system reserves in each block. */
    size_t reserved = image->arch >= 90 ? 1024 : 0;
    if (shared != NULL && shared->sh_size >= reserved)
        kernel->shared_bytes = (int)(shared->sh_size - reserved);
}

static void cubin_add_global(struct image *image, const struct cubin *cubin,
                             const Elf64_Sym *symbol, const char *name) {
    const Elf64_Shdr *section = &cubin->sections[symbol->st_shndx];
    struct global_info *global = image_add_global(image, name, strlen(name));
    global->size = symbol->st_size;
    global->align = section->sh_addralign;
    global->managed = symbol->st_other & SYMBOL_IS_MANAGED;
    if (section->sh_type != SHT_NOBITS && symbol->st_value + symbol->st_size <= section->sh_size) {
        global->data = cubin->bytes + section->sh_offset + symbol->st_value;
        global->data_bytes = symbol->st_size;
    }
}

/* Variables live in .nv.global(.init), constants in .nv.constant3 and .nv.constant4 aside. */
static bool section_holds_variables(const char *name) {
    return strncmp(name, ".nv.global", 10) == 0 || strcmp(name, ".nv.constant3") == 0;
}

static bool arch_runs(int image_arch, int arch) { /* binary compatible: same major, not newer */
    return image_arch / 10 == arch / 10 && image_arch <= arch;
}

CUresult image_parse_cubin(const unsigned char *elf, size_t length, int arch, struct image *out) {
    struct cubin cubin;
    if (!cubin_open(&cubin, elf, length))
        return CUDA_ERROR_INVALID_IMAGE;
    out->arch = cubin_arch(cubin.header);
    if (!arch_runs(out->arch, arch))
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    for (size_t i = 1; i < cubin.symbol_count; i++) {
        const Elf64_Sym *symbol = &cubin.symbols[i];
        const char *name = cubin.strings + symbol->st_name;
        unsigned type = ELF64_ST_TYPE(symbol->st_info);
        if (type == STT_FUNC && (symbol->st_other & SYMBOL_IS_KERNEL) && symbol->st_shndx != 0)
            cubin_add_kernel(out, &cubin, name);
        else if (type == STT_OBJECT && symbol->st_shndx < cubin.header->e_shnum &&
                 section_holds_variables(section_name(&cubin, symbol->st_shndx)))
            cubin_add_global(out, &cubin, symbol, name);
    }
    const Elf64_Shdr *info = section_find(&cubin, ".nv.info", "");
    if (info != NULL)
        info_walk(&cubin, info, &(struct image_and_cubin){out, &cubin}, apply_to_image);
    return CUDA_SUCCESS;
}

/* ---- decompression ---- */

/* The LZ4 block format (lz4_Block_format.md): literals and matches until the input ends. */
static bool unpack_lz4(const unsigned char *in, size_t in_bytes, unsigned char *out,
                       size_t out_bytes) {
    const unsigned char *in_end = in + in_bytes;
    size_t done = 0;
    while (in < in_end) {
        unsigned token = *in++;
        size_t literals = token >> 4, match = (token & 15) + 4;
        for (unsigned more = 255; literals >= 15 && more == 255 && in < in_end;)
            literals += more = *in++;
        if (literals > (size_t)(in_end - in) || literals > out_bytes - done)
            return false;
        memcpy(out + done, in, literals);
        in += literals;
        done += literals;
        if (in_end - in < 2)
            break;
        size_t back = (size_t)in[0] | (size_t)in[1] << 8;
        in += 2;
        for (unsigned more = 255; match >= 19 && more == 255 && in < in_end;)
            match += more = *in++;
        if (back == 0 || back > done || match > out_bytes - done)
            return false;
        for (; match > 0; match--, done++)
            out[done] = out[done - back];
    }
    return done == out_bytes;
}

/* Zstandard comes from the machine's library; without it such an image is refused, loudly. */
static bool unpack_zstd(const unsigned char *in, size_t in_bytes, unsigned char *out,
                        size_t out_bytes) {
    static size_t (*decompress)(void *, size_t, const void *, size_t);
    if (decompress == NULL) {
        void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library != NULL)
            *(void **)&decompress = dlsym(library, "ZSTD_decompress");
    }
    if (decompress == NULL) {
        fprintf(stderr, "fake libcuda: an image is compressed with zstd; install libzstd.so.1\n");
        return false;
    }
    return decompress(out, out_bytes, in, in_bytes) == out_bytes;
}

/* ---- fatbins ---- */

static CUresult parse_plain(const unsigned char *bytes, size_t length, unsigned kind, int arch,
                            struct image *out) {
    if (kind == ENTRY_PTX)
        return image_parse_ptx((const char *)bytes, strnlen((const char *)bytes, length), arch,
                               out);
    return image_parse_cubin(bytes, length, arch, out);
}

static CUresult entry_parse(const struct fatbin_entry *entry, int arch, struct image *out) {
    const unsigned char *payload = (const unsigned char *)entry + entry->header_bytes;
    if (!(entry->flags & (FLAG_LZ4 | FLAG_ZSTD)))
        return parse_plain(payload, entry->payload_bytes, entry->kind, arch, out);
    out->owned = zeroed(entry->unpacked_bytes + 1);
    bool unpacked = entry->flags & FLAG_LZ4
                        ? unpack_lz4(payload, entry->compressed_bytes, out->owned,
                                     entry->unpacked_bytes)
                        : unpack_zstd(payload, entry->compressed_bytes, out->owned,
                                      entry->unpacked_bytes);
    if (!unpacked)
        return CUDA_ERROR_INVALID_IMAGE;
    return parse_plain(out->owned, entry->unpacked_bytes, entry->kind, arch, out);
}

/* CUDA_FORCE_PTX_JIT, CUDA_DISABLE_PTX_JIT; each overrides the one without PTX in its name. */
static bool jit_is(const char *name, const char *older) {
    const char *value = getenv(name) != NULL ? getenv(name) : getenv(older);
    return value != NULL && atoi(value) != 0;
}

static bool jit_forced(void) { return jit_is("CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT"); }

static bool jit_disabled(void) { return jit_is("CUDA_DISABLE_PTX_JIT", "CUDA_DISABLE_JIT"); }

/* The newest cubin that runs on the device; else the newest PTX that can be compiled for it. */
static CUresult fatbin_parse(const unsigned char *bytes, int arch, struct image *out) {
    const struct fatbin *fatbin = (const struct fatbin *)bytes;
    const unsigned char *at = bytes + fatbin->header_bytes, *end = at + fatbin->bytes;
    const struct fatbin_entry *best = NULL;
    while (at + sizeof *best <= end) {
        const struct fatbin_entry *entry = (const struct fatbin_entry *)at;
        bool fits = entry->kind == ENTRY_CUBIN
                        ? !jit_forced() && arch_runs((int)entry->arch, arch)
                        : entry->kind == ENTRY_PTX && (int)entry->arch <= arch;
        if (fits && (best == NULL || entry->kind > best->kind ||
                     (entry->kind == best->kind && entry->arch >= best->arch)))
            best = entry;
        uint64_t payload = entry->payload_bytes > entry->compressed_bytes
                               ? entry->payload_bytes : entry->compressed_bytes;
        if (entry->header_bytes < sizeof *entry || payload > (uint64_t)(end - at))
            return CUDA_ERROR_INVALID_IMAGE;
        at += entry->header_bytes + payload;
    }
    if (best != NULL && best->kind == ENTRY_PTX && jit_disabled())
        return CUDA_ERROR_JIT_COMPILATION_DISABLED;
    return best ? entry_parse(best, arch, out) : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult image_parse(const void *image, int arch, struct image **out) {
    const unsigned char *bytes = image;
    struct image *parsed = zeroed(sizeof *parsed);
    CUresult result;
    if (word(bytes, 0) == WRAPPER_MAGIC)
        bytes = ((const struct wrapper *)image)->data;
    if (word(bytes, 0) == FATBIN_MAGIC) {
        result = fatbin_parse(bytes, arch, parsed);
    } else if (memcmp(bytes, ELFMAG, SELFMAG) == 0) {
        /* The caller may free its bytes after the call, so variables' initial bytes are copied. */
        size_t length = image_cubin_bytes(bytes);
        parsed->owned = zeroed(length);
        memcpy(parsed->owned, bytes, length);
        result = image_parse_cubin(parsed->owned, length, arch, parsed);
    } else if (bytes[0] >= 0x80 || (bytes[0] < ' ' && strchr("\t\n\r", bytes[0]) == NULL)) {
        result = CUDA_ERROR_INVALID_IMAGE;
    } else {
        result = image_parse_ptx((const char *)bytes, strlen((const char *)bytes), arch, parsed);
    }
    *out = result == CUDA_SUCCESS ? parsed : NULL;
    return result;
}
