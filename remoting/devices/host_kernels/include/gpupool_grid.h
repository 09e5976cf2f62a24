// A grid of threads on one processor: blocks one after another, threads of a block as coroutines.
//
// A coroutine has its own stack and runs threads one after another. Only when a thread waits at a
// barrier does its coroutine stop; another one then runs threads that are ready or have not begun.
// So a kernel without barriers needs one coroutine, and is a plain loop. A barrier of a warp is
// complete when its last thread comes, one of a block when no thread is ready. If none is complete
// then, the launch fails.
#pragma once
#pragma GCC system_header

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(GPUPOOL_PORTABLE)
#define GPUPOOL_PORTABLE
#endif
#ifdef GPUPOOL_PORTABLE
#include <setjmp.h>
#include <ucontext.h>
#endif

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

namespace gpupool {

const unsigned THREADS_MAX = 1024, WARPS_MAX = THREADS_MAX / 32;
const size_t SHARED_MAX = 48 << 10, STACK = 128 << 10, GUARD = 64 << 10, VALUE = 16;
// The lowest part of each stack stays closed, so that a call too deep ends the worker.

// Stacks begin at 64 places of a page, or all their first lines would compete for one cache set.
const unsigned COLOURS = 64, COLOUR = 64;

typedef void (*Entry)(void **arguments);

// What the worker passes for one launch; host_library.py has the same.
struct Launch {
  unsigned grid[3], block[3];
  void **arguments;
  char *stacks;     // THREADS_MAX of them, closed but for those that were used
  unsigned opened;  // how many were used
  int status;       // CUDA's number of the error, or 0
  char text[252];
};

// --- switches ------------------------------------------------------------------------------------

// A context is a coroutine that does not run. A switch saves what a called function must leave as
// it was, and takes up the same of another context.
#ifndef GPUPOOL_PORTABLE
struct Context { void **at; };

extern "C" void gpupool_switch(Context *from, Context *to) __attribute__((visibility("hidden")));
#ifdef __x86_64__
const unsigned RETURN = 6, FRAME = 8;  // words before the address to go to, and in all
asm(R"(.pushsection .text
gpupool_switch:
	pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
	movq %rsp, (%rdi); movq (%rsi), %rsp
	popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
	ret
.popsection)");
#else
const unsigned RETURN = 11, FRAME = 20;
asm(R"(.pushsection .text
gpupool_switch:
	stp x19, x20, [sp, #-160]!; stp x21, x22, [sp, #16]; stp x23, x24, [sp, #32]
	stp x25, x26, [sp, #48]; stp x27, x28, [sp, #64]; stp x29, x30, [sp, #80]
	stp d8, d9, [sp, #96]; stp d10, d11, [sp, #112]; stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144]
	mov x9, sp; str x9, [x0]; ldr x9, [x1]; mov sp, x9
	ldp d14, d15, [sp, #144]; ldp d12, d13, [sp, #128]; ldp d10, d11, [sp, #112]; ldp d8, d9, [sp, #96]
	ldp x29, x30, [sp, #80]; ldp x27, x28, [sp, #64]; ldp x25, x26, [sp, #48]
	ldp x23, x24, [sp, #32]; ldp x21, x22, [sp, #16]; ldp x19, x20, [sp], #160
	ret
.popsection)");
#endif

inline void switch_to(Context &from, Context &to) { gpupool_switch(&from, &to); }

// Makes a context that calls a function, which never returns.
inline void make(Context &made, char *stack, size_t size, void (*run)()) {
  made.at = reinterpret_cast<void **>(stack + size) - FRAME;
  memset(made.at, 0, FRAME * sizeof(void *));
  made.at[RETURN] = reinterpret_cast<void *>(run);
}
#else
struct Context { jmp_buf at; };

inline void switch_to(Context &from, Context &to) {
  if (_setjmp(from.at) == 0) _longjmp(to.at, 1);
}

static Context *making;
static ucontext_t maker, made_by;
static void (*to_run)();

static void begin() {
  if (_setjmp(making->at) == 0) setcontext(&maker);
  to_run();
}

inline void make(Context &made, char *stack, size_t size, void (*run)()) {
  making = &made;
  to_run = run;
  getcontext(&made_by);
  made_by.uc_stack.ss_sp = stack;
  made_by.uc_stack.ss_size = size;
  makecontext(&made_by, begin, 0);
  swapcontext(&maker, &made_by);
}
#endif

// --- threads of a block --------------------------------------------------------------------------

static Launch *launch;
static Entry entry;
static Context home, idle[THREADS_MAX], waits[THREADS_MAX];  // of coroutines; of threads that wait
static unsigned made, started;  // coroutines of this launch, and those in use
static unsigned count, next_thread, running;
static uint3 next_index;
static bool counted;  // as follows, and in `live`
static unsigned alive, at_barrier;  // how many have not ended, and how many wait for the block
static unsigned last_ready;         // no warp before it has a thread that is ready
// Threads of each warp, a bit for each lane.
static unsigned live[WARPS_MAX], ready[WARPS_MAX], at_block[WARPS_MAX], at_warp[WARPS_MAX];
static unsigned masks[THREADS_MAX], participants[THREADS_MAX];
static char given[THREADS_MAX][VALUE], taken[THREADS_MAX][VALUE];
static unsigned true_so_far, block_true, block_all;  // the last two of the last barrier of the block
#ifdef GPUPOOL_STRICT
// By itself, so that what lies before and behind it is nothing of the kernel's.
static char *const dynamic_shared = static_cast<char *>(
    mmap(nullptr, SHARED_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
static void begin_watch(), watch_block(), watch_barrier(), end_watch();
static void watch_fence(), watch_warp(unsigned first, unsigned group);
#define GP_WATCH(call) gpupool::call
#else
alignas(64) static char dynamic_shared[SHARED_MAX];
#define GP_WATCH(call)
#endif

inline unsigned self() { return running; }
inline unsigned lane_bit(unsigned thread) { return 1u << (thread & 31); }

[[noreturn]] inline void fail(int status, const char *text) {
  launch->status = status;
  strncpy(launch->text, text, sizeof launch->text - 1);
  switch_to(waits[running], home);
  __builtin_unreachable();
}

// Goes to the next block; false after the last one.
inline bool next_block() {
  if (++blockIdx.x < gridDim.x) return true;
  blockIdx.x = 0;
  if (++blockIdx.y < gridDim.y) return true;
  blockIdx.y = 0;
  return ++blockIdx.z < gridDim.z;
}

inline void begin_block() {
  next_thread = 0;
  next_index = uint3{0, 0, 0};
  counted = false;
  GP_WATCH(watch_block());
}

// Counts the threads of a block that have not ended, when that first matters: those before this
// one have, as long as none waited.
inline void count_threads() {
  if (counted) return;
  counted = true;
  alive = count - running;
  for (unsigned warp = 0, first = 0; first < count; warp++, first += 32) {
    live[warp] = count - first < 32 ? lane_bit(count) - 1 : ~0u;
    if (running > first) live[warp] &= running - first < 32 ? ~(lane_bit(running) - 1) : 0;
  }
}

// Not as a whole: a processor waits where it reads 8 bytes of which it has just written 4.
inline void copy(uint3 &to, const uint3 &from) {
  to.x = from.x;
  to.y = from.y;
  to.z = from.z;
}

inline void begin_thread() {
  running = next_thread++;
  copy(threadIdx, next_index);
  if (++next_index.x == blockDim.x) {
    next_index.x = 0;
    if (++next_index.y == blockDim.y) {
      next_index.y = 0;
      next_index.z++;
    }
  }
}

// Lets threads of a warp go on whose barrier is complete.
static void complete_warp(unsigned warp) {
  unsigned first = warp * 32;
  for (unsigned left = at_warp[warp]; left;) {
    unsigned mask = masks[first + __builtin_ctz(left)], group = mask & live[warp], there = 0;
    for (unsigned lanes = left & group; lanes; lanes &= lanes - 1) {
      unsigned lane = __builtin_ctz(lanes);
      if (masks[first + lane] == mask) there |= 1u << lane;
    }
    left &= ~there;
    if (there != group) continue;
    for (unsigned lanes = group; lanes; lanes &= lanes - 1) {
      unsigned thread = first + __builtin_ctz(lanes);
      participants[thread] = group;
      memcpy(taken[thread], given[thread], VALUE);
    }
    GP_WATCH(watch_warp(first, group));
    at_warp[warp] &= ~group;
    ready[warp] |= group;
    if (warp < last_ready) last_ready = warp;
  }
}

// Lets the threads of the block go on if all wait for that.
static bool complete_block() {
  if (!counted || at_barrier != alive || alive == 0) return false;
  GP_WATCH(watch_barrier());
  block_all = alive;
  block_true = true_so_far;
  at_barrier = true_so_far = last_ready = 0;
  for (unsigned warp = 0; warp * 32 < count; warp++) {
    ready[warp] |= at_block[warp];
    at_block[warp] = 0;
  }
  return true;
}

// Opens the stack of a coroutine that is new in this launch; false if there is no memory for it.
static void run_threads();
static bool make_coroutine() {
  char *stack = launch->stacks + made * (STACK + GUARD) + GUARD;
  if (made >= launch->opened) {
    if (mprotect(stack, STACK, PROT_READ | PROT_WRITE) != 0) {
      launch->status = 2;
      strncpy(launch->text, "no memory is left for the stacks of a block's threads", 200);
      return false;
    }
    launch->opened = made + 1;
  }
  make(idle[made], stack, STACK - made % COLOURS * COLOUR, run_threads);
  made++;
  return true;
}

// Goes on with another thread; returns when this context's thread, or next block, has its turn.
static __attribute__((noinline)) void leave(Context &mine) {
  unsigned warps = (count + 31) / 32;
  do {
    for (; last_ready < warps; last_ready++) {
      unsigned lanes = ready[last_ready];
      if (!lanes) continue;
      ready[last_ready] = lanes & (lanes - 1);
      Context &next = waits[last_ready * 32 + __builtin_ctz(lanes)];
      if (&next != &mine) switch_to(mine, next);
      return;
    }
    if (next_thread < count) {
      bool there = started < made || make_coroutine();
      switch_to(mine, there ? idle[started++] : home);
      return;
    }
  } while (complete_block());
  switch_to(mine, home);  // the block has ended, or waits for ever
}

// Stops the thread until its barrier is complete.
inline void wait() {
  unsigned me = running;
  uint3 index;
  copy(index, threadIdx);
  leave(waits[me]);
  running = me;
  copy(threadIdx, index);
}

inline void end_thread() {
  if (!counted) return;
  live[running / 32] &= ~lane_bit(running);
  alive--;
  if (at_warp[running / 32]) complete_warp(running / 32);
}

// What a coroutine runs: one thread after another, until all of a block have begun.
static void run_threads() {
  for (Context &mine = idle[started - 1];;) {
    while (next_thread < count) {
      begin_thread();
      entry(launch->arguments);
      end_thread();  // wait() has made the thread this one again
    }
    leave(mine);
  }
}

static void run_grid() {
  made = at_barrier = true_so_far = 0;
  for (unsigned warp = 0; warp < WARPS_MAX; warp++)  // the last launch may have failed
    ready[warp] = at_block[warp] = at_warp[warp] = 0;
  do {
    started = 0;
    begin_block();
    leave(home);
    if (launch->status) return;
    if (counted && alive) {
      launch->status = 719;
      strncpy(launch->text, "threads of a block wait at different barriers for ever", 200);
      return;
    }
  } while (next_block());
}

template <class T> struct Plain { typedef T type; };
template <class T> struct Plain<const T> { typedef T type; };
template <class T> struct Plain<volatile T> { typedef T type; };
template <class T> using Bare = typename Plain<T>::type;

template <class... P> struct Call {
  Call(void (*kernel)(P...), P... values) { kernel(values...); }
};
template <class... P> inline void call(void (*kernel)(P...), void **arguments) {
  // In braces the arguments are read from left to right.
  Call<P...>{kernel, *static_cast<Bare<P> *>(*arguments++)...};
}

template <class... P> constexpr int parameters(void (*)(P...)) { return sizeof...(P); }

}  // namespace gpupool

extern "C" __attribute__((visibility("default"))) void gpupool_launch(gpupool::Entry entry,
                                                                      gpupool::Launch *launch) {
  gpupool::entry = entry;
  gpupool::launch = launch;
  blockDim = dim3(launch->block[0], launch->block[1], launch->block[2]);
  gridDim = dim3(launch->grid[0], launch->grid[1], launch->grid[2]);
  blockIdx = uint3{0, 0, 0};
  gpupool::count = blockDim.x * blockDim.y * blockDim.z;
  GP_WATCH(begin_watch());
  gpupool::run_grid();
  GP_WATCH(end_watch());
}
