// A grid of threads on one processor: blocks one after another, threads of a block as coroutines.
//
// A coroutine has a stack of its own and runs threads one after another. Only when a thread waits at
// a barrier does its coroutine stop, and another one runs the threads that have not begun. So a
// kernel without barriers needs one coroutine, and is a plain loop. When all threads of a block have
// ended or wait, those whose barrier is complete go on. If none can, the launch fails.
#pragma once
#pragma GCC system_header

#include <setjmp.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

namespace gpupool {

const unsigned THREADS_MAX = 1024;
const size_t SHARED_MAX = 48 << 10, STACK = 128 << 10, GUARD = 64 << 10, VALUE = 16;
// The lowest part of each stack stays closed, so that a call too deep ends the worker.

typedef void (*Entry)(void **arguments);

// What the worker passes for one launch; host_library.py has the same.
struct Launch {
  unsigned grid[3], block[3];
  void **arguments;
  char *stacks;  // THREADS_MAX of them, closed but for those that were used
  int status;    // CUDA's number of the error, or 0
  char text[252];
};

enum State : unsigned char { ENDED, RUNNING, RELEASED, AT_WARP, AT_BLOCK };

struct Coroutine {
  jmp_buf at;
  unsigned thread;  // that it runs, or that waits
  bool idle;
};

static Launch *launch;
static Entry entry;
static jmp_buf home;
static Coroutine coroutines[THREADS_MAX];
static unsigned made, started, current;  // coroutines, those in use, and the one that runs
static unsigned next_thread, count, waiting;
static State states[THREADS_MAX];
static unsigned masks[THREADS_MAX], participants[THREADS_MAX];
static char given[THREADS_MAX][VALUE], taken[THREADS_MAX][VALUE];
static unsigned block_true, block_all;  // of the last barrier of the block
alignas(64) static char dynamic_shared[SHARED_MAX];

[[noreturn]] inline void fail(int status, const char *text) {
  launch->status = status;
  strncpy(launch->text, text, sizeof launch->text - 1);
  _longjmp(home, 2);
}

inline unsigned self() { return coroutines[current].thread; }

inline void place(unsigned thread) {
  threadIdx.x = thread % blockDim.x;
  threadIdx.y = thread / blockDim.x % blockDim.y;
  threadIdx.z = thread / blockDim.x / blockDim.y;
}

// Goes to the first thread of the next block; false after the last one.
inline bool next_block() {
  if (++blockIdx.x == gridDim.x) {
    blockIdx.x = 0;
    if (++blockIdx.y == gridDim.y) {
      blockIdx.y = 0;
      if (++blockIdx.z == gridDim.z) return false;
    }
  }
  next_thread = 0;
  return true;
}

static bool finished;

// Runs threads until none is left to begin; the whole grid, as long as no thread waits.
static void run_threads_once() {
  for (;;) {
    while (next_thread < count) {
      unsigned thread = next_thread++;
      coroutines[current].thread = thread;
      states[thread] = RUNNING;
      place(thread);
      entry(launch->arguments);
      // Another coroutine may have run in between; this one knows its thread.
      states[coroutines[current].thread] = ENDED;
    }
    if (waiting || finished || started > 1) break;
    if (!next_block()) {
      finished = true;
      break;
    }
  }
}

// A coroutine is made once in a launch; between blocks it waits.
static void run_threads() {
  for (;;) {
    run_threads_once();
    coroutines[current].idle = true;
    if (_setjmp(coroutines[current].at) == 0) _longjmp(home, 1);
  }
}

// Stops the thread until the scheduler lets it go on.
static void wait(State state, unsigned mask) {
  unsigned me = self();
  states[me] = state;
  masks[me] = mask;
  waiting++;
  if (_setjmp(coroutines[current].at) == 0) _longjmp(home, 1);
}

inline unsigned live_mask(unsigned warp) {
  unsigned made = 0;
  for (unsigned lane = 0; lane < 32 && warp * 32 + lane < count; lane++)
    if (states[warp * 32 + lane] != ENDED) made |= 1u << lane;
  return made;
}

inline void release(unsigned thread, unsigned group) {
  states[thread] = RELEASED;
  participants[thread] = group;
  memcpy(taken[thread], given[thread], VALUE);
}

// Lets threads go on whose barrier is complete; false if there is none.
static bool resolve() {
  bool any = false;
  for (unsigned first = 0; first < count; first += 32) {
    unsigned live = live_mask(first / 32);
    for (unsigned lane = 0; lane < 32 && first + lane < count; lane++) {
      unsigned thread = first + lane;
      if (states[thread] != AT_WARP) continue;
      unsigned group = masks[thread] & live;
      bool complete = group >> lane & 1;
      for (unsigned other = 0; other < 32 && complete; other++)
        if (group >> other & 1)
          complete = states[first + other] == AT_WARP && masks[first + other] == masks[thread];
      if (!complete) continue;
      for (unsigned other = 0; other < 32; other++)
        if (group >> other & 1) release(first + other, group);
      any = true;
    }
  }
  if (any) return true;
  unsigned there = 0, live = 0;
  for (unsigned thread = 0; thread < count; thread++) {
    live += states[thread] != ENDED;
    there += states[thread] == AT_BLOCK;
  }
  if (there != live) return false;
  block_all = there;
  block_true = 0;
  for (unsigned thread = 0; thread < count; thread++)
    if (states[thread] == AT_BLOCK) {
      block_true += given[thread][0] != 0;
      release(thread, 0);
    }
  return true;
}

static void resume(unsigned which) {
  current = which;
  unsigned thread = coroutines[which].thread;
  states[thread] = RUNNING;
  waiting--;
  place(thread);
  if (_setjmp(home) == 0) _longjmp(coroutines[which].at, 1);
}

static void start() {
  current = started++;
  char *stack = launch->stacks + current * (STACK + GUARD) + GUARD;
  coroutines[current].idle = false;
  if (current < made) {
    if (_setjmp(home) == 0) _longjmp(coroutines[current].at, 1);
    return;
  }
  made++;
  if (mprotect(stack, STACK, PROT_READ | PROT_WRITE) != 0) {
    launch->status = 2;
    strncpy(launch->text, "no memory is left for the stacks of a block's threads", 200);
    return;
  }
  ucontext_t fresh;
  getcontext(&fresh);
  fresh.uc_stack.ss_sp = stack;
  fresh.uc_stack.ss_size = STACK;
  fresh.uc_link = nullptr;
  makecontext(&fresh, run_threads, 0);
  if (_setjmp(home) == 0) setcontext(&fresh);
}

static void run_grid() {
  for (;;) {
    while (next_thread < count && launch->status == 0) start();
    if (launch->status || finished) return;
    if (waiting == 0) {
      if (!next_block()) return;
      started = 0;
    } else if (resolve()) {
      for (unsigned which = 0; which < started && launch->status == 0; which++)
        if (!coroutines[which].idle && states[coroutines[which].thread] == RELEASED) resume(which);
    } else {
      launch->status = 719;
      strncpy(launch->text, "threads of a block wait at different barriers for ever", 200);
    }
  }
}

template <size_t... I> struct Places {};
template <size_t N, size_t... I> struct Count : Count<N - 1, N - 1, I...> {};
template <size_t... I> struct Count<0, I...> { typedef Places<I...> type; };

template <class T> struct Plain { typedef T type; };
template <class T> struct Plain<const T> { typedef T type; };

template <class... P, size_t... I>
inline void call_with(void (*kernel)(P...), void **arguments, Places<I...>) {
  (void)arguments;
  kernel(*static_cast<typename Plain<P>::type *>(arguments[I])...);
}

template <class... P> inline void call(void (*kernel)(P...), void **arguments) {
  call_with(kernel, arguments, typename Count<sizeof...(P)>::type());
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
  gpupool::next_thread = gpupool::waiting = gpupool::made = gpupool::started = 0;
  gpupool::finished = false;
  gpupool::run_grid();
}
