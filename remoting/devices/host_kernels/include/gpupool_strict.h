// Strict mode: each access of a kernel to memory is checked, as compute-sanitizer does on a GPU.
//
// GCC puts a call before each access (-fsanitize=thread), and this file has the called functions in
// place of its library. strict_source.py takes out the calls of our own headers.
//
// Order. A step is a number that rises at each barrier, release and block, over all launches. Each
// unit of memory has cells: the step, and the thread in the block, of the last accesses of a kind.
// Two accesses are ordered if one thread made them, or if a barrier of the block or warp, a fence
// with an atomic operation, or the end of a launch stands between. What is not ordered is a race if
// one of the two is a plain write. A write that leaves all bytes as they were is none.
#pragma once
#pragma GCC system_header

namespace gpupool {

typedef unsigned long long u64;

enum Kind { BOUNDS = 1, MISALIGNED, UNWRITTEN, RACE };
enum How { READ = 0, WRITE = 1, ATOMIC = 2, VOLATILE = 4, LOOSE = 8 };
enum Place { ARRAY, SHARED, DYNAMIC, GLOBAL, HEAP, PLACES };
enum Plane { WRITTEN, READ_LAST, READ_BY_OTHER, READ_BY_BLOCK, BY_ATOMIC, PLANES };
const u64 THREAD = 1023, RELEASE = 1024, HEAP_SIZE = 1ull << 30;

// strict_launch.py has the same.
struct Region {
  u64 start, end;
  unsigned char *written;  // for each byte whether it was; null if all were
  u64 *cells;              // by Plane
  u64 shift;               // of the bytes of a unit
};
struct Steps { u64 first, last; };
struct Finding { u64 kind, address, size, write, thread, other, other_step, place, line, x, y, z; };
struct Watch {
  const Region *regions;  // sorted
  u64 count;
  const Steps *unordered;  // of work in other streams that is not ordered before this launch
  u64 unordered_count;
  u64 shared;  // bytes of dynamic shared memory
  u64 step;    // the launch's first step; afterwards the last
  Finding finding;
  u64 shared_start, shared_end, dynamic_start;
};

static Watch *watch;
static Region own[PLACES];  // the first is empty
static const Region *latest;
static u64 launch_step, block_step, barrier_step, fence_step, acquired;
static bool constructing;  // a variable in shared memory, which CUDA leaves as it is
static u64 seen[THREADS_MAX][32];  // up to which step of a lane its work is ordered before a thread's
static Finding doubt;              // a write that is a race if it changes memory
static char doubted[16];

__attribute__((used)) static int line asm("gpupool_line");
extern "C" {
__attribute__((visibility("hidden"))) extern char __ehdr_start, _end;  // the linker's
// Of strict_source.py. Guards: where it stands whether a variable was constructed; then ~0.
__attribute__((visibility("hidden"))) extern thread_local char gpupool_shared, gpupool_shared_end;
__attribute__((visibility("hidden"))) extern const u64 gpupool_guards[];
}

// --- order ---------------------------------------------------------------------------------------

static void watch_block() {
  if (!watch) return;
  block_step = ++watch->step;
  barrier_step = acquired = 0;
}

static void watch_barrier() {
  if (watch) barrier_step = watch->step++;
}

static void watch_warp(unsigned first, unsigned group) {
  if (!watch) return;
  u64 joined[32] = {};
  for (unsigned lane = 0; lane < 32; lane++)
    for (unsigned from = first; from < first + 32; from++)
      if (group >> (from - first) & 1 && joined[lane] < seen[from][lane]) joined[lane] = seen[from][lane];
  for (unsigned lane = 0; lane < 32; lane++)
    if (group >> lane & 1) joined[lane] = watch->step;
  for (unsigned lane = 0; lane < 32; lane++)
    if (group >> lane & 1) __builtin_memcpy(seen[first + lane], joined, sizeof joined);
  watch->step++;
}

static void watch_fence() {
  if (watch) fence_step = watch->step;
}

static bool ordered(u64 cell, unsigned place) {
  u64 step = cell >> 32, thread = cell & THREAD;
  if (step < launch_step) {
    for (u64 i = 0; i < watch->unordered_count && place == ARRAY; i++)
      if (watch->unordered[i].first <= step && step <= watch->unordered[i].last) return false;
    return true;
  }
  if (step < block_step) return place == SHARED || place == DYNAMIC || step <= acquired;
  return thread == self() || step <= barrier_step || step <= acquired ||
         (thread / 32 == self() / 32 && step <= seen[self()][thread % 32]);
}

// --- findings ------------------------------------------------------------------------------------

struct Access { u64 at, size; unsigned how, place; };

// With the step of the other access: 0 in this block, 1 in another one, or that of another launch.
static Finding finding(unsigned kind, const Access &a, u64 cell) {
  u64 step = cell >> 32;
  return {kind, a.at, a.size, a.how & (WRITE | ATOMIC), self(), cell & THREAD,
          step >= block_step ? 0 : step >= launch_step ? 1 : step, a.place,
          static_cast<u64>(line), blockIdx.x, blockIdx.y, blockIdx.z};
}

[[noreturn]] static void report(unsigned kind, const Access &a, u64 cell) {
  watch->finding = finding(kind, a, cell);
  fail(kind == BOUNDS ? 700 : kind == MISALIGNED ? 716 : 719, "strict");
}

static void suspect(const Access &a, u64 cell) {
  if (doubt.kind) return;
  doubt = finding(RACE, a, cell);
  if (doubt.size > sizeof doubted) doubt.size = sizeof doubted;
  __builtin_memcpy(doubted, reinterpret_cast<void *>(a.at), doubt.size);
}

// Says whether the write in doubt changed memory; then it is a finding.
static bool settle() {
  if (!doubt.kind) return false;
  doubt.kind = 0;
  if (!__builtin_memcmp(reinterpret_cast<void *>(doubt.address), doubted, doubt.size)) return false;
  watch->finding = doubt;
  watch->finding.kind = RACE;
  return true;
}

// --- accesses ------------------------------------------------------------------------------------

static const Region *find(u64 address, unsigned &place) {
  for (place = SHARED; place < PLACES; place++)
    if (own[place].start <= address && address < own[place].end) return &own[place];
  place = ARRAY;
  if (latest && latest->start <= address && address < latest->end) return latest;
  u64 low = 0, high = watch->count;
  while (low < high) {
    u64 middle = (low + high) / 2;
    if (watch->regions[middle].end <= address) low = middle + 1;
    else high = middle;
  }
  if (low == watch->count || address < watch->regions[low].start) return nullptr;
  return latest = &watch->regions[low];
}

static void check_order(const Region *region, u64 unit, const Access &a) {
  u64 units = (region->end - region->start) >> region->shift, stamp = watch->step << 32 | self();
  u64 *cells[PLANES];
  for (unsigned i = 0; i < PLANES; i++) cells[i] = region->cells + i * units + unit;
  u64 &write = *cells[WRITTEN], &read = *cells[READ_LAST], &atomic = *cells[BY_ATOMIC];
  if (a.how & (ATOMIC | VOLATILE)) {
    if (atomic & RELEASE && acquired < atomic >> 32) acquired = atomic >> 32;
    if (!ordered(write, a.place)) report(RACE, a, write);
    if (a.how == VOLATILE) return;
    bool release = fence_step >= block_step || atomic & RELEASE;
    atomic = stamp | (release ? RELEASE : 0);
    watch->step += release;
  } else if (a.how & WRITE) {
    if (!ordered(atomic, a.place)) report(RACE, a, atomic);
    for (unsigned plane = WRITTEN; plane <= READ_BY_BLOCK; plane++)
      if (!ordered(*cells[plane], a.place)) suspect(a, *cells[plane]);
    write = stamp;
  } else {
    if (!ordered(write, a.place)) report(RACE, a, write);
    if (atomic >> 32 < launch_step && !ordered(atomic, a.place)) report(RACE, a, atomic);
    if (read >> 32 < block_step) {
      if (read) *cells[READ_BY_BLOCK] = read;
      *cells[READ_BY_OTHER] = 0;
    } else if ((read & THREAD) != self()) {
      *cells[READ_BY_OTHER] = read;
    }
    read = stamp;
  }
}

static bool is_guard(const Access &a) {
  for (const u64 *guard = gpupool_guards; *guard != ~0ull; guard++)
    if (a.at == own[SHARED].start + *guard) {
      constructing = !(a.how & WRITE) && !*reinterpret_cast<const char *>(a.at);
      return true;
    }
  return false;
}

static __attribute__((noinline)) void access(const void *pointer, u64 size, unsigned how) {
  Access a = {reinterpret_cast<u64>(pointer), size, how & ~LOOSE, ARRAY};
  bool loose = how & LOOSE;  // a structure, in which bytes may have no name, or any address
  if (!watch || !size) return;
  if (a.at - reinterpret_cast<u64>(launch->stacks) < THREADS_MAX * (STACK + GUARD)) return;
  if (settle()) fail(719, "strict");
  const Region *region = find(a.at, a.place);
  if ((a.place == SHARED && is_guard(a)) || constructing) return;
  if (!region || a.at + size > region->end) report(BOUNDS, a, 0);
  if (!loose && a.at % (size < 8 ? size : 8)) report(MISALIGNED, a, 0);
  if (a.place == SHARED || a.place == DYNAMIC) a.how &= ~VOLATILE;  // a warp's need barriers
  u64 from = a.at - region->start, written = 0;
  if (region->written) {
    for (u64 i = from; i < from + size; i++) written += region->written[i];
    if (!(how & WRITE) && (loose ? !written : written < size)) report(UNWRITTEN, a, 0);
    for (u64 i = from; i < from + size && a.how != READ; i++) region->written[i] = 1;
  }
  if (!region->cells) return;
  u64 unit = 1ull << region->shift;
  for (u64 i = (from + unit - 1) & ~(unit - 1); i + unit <= from + size; i += unit)
    check_order(region, i >> region->shift, a);
}

template <class T> inline void watch_access(const volatile T *at, unsigned how) {
  access(const_cast<const T *>(at), sizeof(T), how);
}

// --- a launch ------------------------------------------------------------------------------------

static void *map(u64 size) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *made = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  return made == MAP_FAILED ? nullptr : made;
}

static void own_memory(Place place, const char *start, const char *end, u64 shift) {
  Region &region = own[place];
  region.start = reinterpret_cast<u64>(start);
  region.end = reinterpret_cast<u64>(end);
  region.shift = shift;
  u64 units = (region.end - region.start) >> shift;
  if (!region.cells) region.cells = static_cast<u64 *>(map(units * PLANES * sizeof(u64) + 1));
}

static void begin_watch() {
  if (!watch) return;
  own_memory(GLOBAL, &__ehdr_start, &_end, 2);
  own_memory(SHARED, &gpupool_shared, &gpupool_shared_end, 0);
  own_memory(DYNAMIC, dynamic_shared, dynamic_shared + SHARED_MAX, 0);
  own[DYNAMIC].end = own[DYNAMIC].start + watch->shared;
  watch->shared_start = own[SHARED].start;
  watch->shared_end = own[SHARED].end;
  watch->dynamic_start = own[DYNAMIC].start;
  latest = nullptr;
  constructing = false;
  doubt.kind = fence_step = 0;
  launch_step = watch->step;
}

static void end_watch() {
  if (watch && !launch->status && settle()) launch->status = 719;
  watch = nullptr;
}

}  // namespace gpupool

// Watches the next launch.
extern "C" __attribute__((visibility("default"))) void gpupool_watch(gpupool::Watch *watch) {
  gpupool::watch = watch;
}

// What a kernel allocates lies by itself, and is never used again.
#define GP_HIDDEN __attribute__((visibility("hidden"), used))
GP_HIDDEN void *operator new(size_t size) {
  gpupool::Region &heap = gpupool::own[gpupool::HEAP];
  if (!heap.start) heap.start = heap.end = reinterpret_cast<gpupool::u64>(gpupool::map(gpupool::HEAP_SIZE));
  heap.end += (size + 15) & ~15ull;
  return reinterpret_cast<void *>(heap.end - ((size + 15) & ~15ull));
}
GP_HIDDEN void *operator new[](size_t size) { return operator new(size); }
GP_HIDDEN void operator delete(void *) noexcept {}
GP_HIDDEN void operator delete(void *, size_t) noexcept {}
GP_HIDDEN void operator delete[](void *) noexcept {}

// --- what the compiler calls ---------------------------------------------------------------------

extern "C" {
#define GP_HOOK(name, size, how) \
  GP_HIDDEN void __tsan_##name##size(void *p) { gpupool::access(p, size, how); }
#define GP_HOOKS(size)                                                                    \
  GP_HOOK(read, size, 0) GP_HOOK(unaligned_read, size, 8)                                 \
  GP_HOOK(write, size, 1) GP_HOOK(unaligned_write, size, 9)                               \
  GP_HOOK(volatile_read, size, 4) GP_HOOK(unaligned_volatile_read, size, 12)              \
  GP_HOOK(volatile_write, size, 5) GP_HOOK(unaligned_volatile_write, size, 13)
GP_HOOKS(1) GP_HOOKS(2) GP_HOOKS(4) GP_HOOKS(8) GP_HOOKS(16)
GP_HIDDEN void __tsan_read_range(void *p, size_t size) { gpupool::access(p, size, 8); }
GP_HIDDEN void __tsan_write_range(void *p, size_t size) { gpupool::access(p, size, 9); }
GP_HIDDEN void __tsan_vptr_read(void *p) { gpupool::access(p, sizeof p, 0); }
GP_HIDDEN void __tsan_vptr_update(void *p, void *) { gpupool::access(p, sizeof p, 1); }
GP_HIDDEN void __tsan_init() {}
GP_HIDDEN void *gpupool_memset(void *to, int byte, size_t size) {
  gpupool::access(to, size, 9);
  return memset(to, byte, size);
}
GP_HIDDEN void *gpupool_memmove(void *to, const void *from, size_t size) {
  gpupool::access(from, size, 8);
  gpupool::access(to, size, 9);
  return memmove(to, from, size);
}
}
