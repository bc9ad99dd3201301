// The threads of a block as fibers, their barriers and shuffles, and the checks: linked to every kernel.
#include "shim.hpp"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_cpu {

enum State { READY, AT_BARRIER, IN_WARP, DONE };
enum { STACK = 96 * 1024, PAD = 4096 };

struct Fiber {
  State state;
  bool started;
  int line;              // of the barrier or shuffle it waits at
  int votes;             // what it brought to a barrier that counts
  unsigned mask;         // of the lanes that meet in a shuffle
  const char* kind;
  uint64_t given;
  int argument, width;
  uint64_t got[32];      // all lanes' values, once they have met
  int arguments;
  jmp_buf at;
};

static std::vector<Fiber> fibers;
static std::vector<ucontext_t> contexts;
static char* stacks;
int current;
static int total, voted;
static jmp_buf scheduler;
static ucontext_t origin;
void (*body)(void**);
static void** values;
static char message[600];
static std::vector<unsigned char> memory;
static unsigned char* dynamic_start;

void complain(const char* format, ...) {
  if (message[0]) return;
  va_list list;
  va_start(list, format);
  vsnprintf(message, sizeof message, format, list);
  va_end(list);
}

void* dynamic() { return dynamic_start; }

static __attribute__((noinline)) void pause_here() {
  Fiber& f = fibers[current];
  if (_setjmp(f.at) == 0) _longjmp(scheduler, 1);
}

static void enter() {
  body(values);
  fibers[current].state = DONE;
  _longjmp(scheduler, 1);
}

int barrier(int line, int vote) {
  Fiber& f = fibers[current];
  f.state = AT_BARRIER;
  f.line = line;
  f.votes = vote;
  pause_here();
  return voted;
}

const uint64_t* meet(unsigned mask, const char* kind, uint64_t given, int line) {
  const int first = current / 32 * 32, lane = current % 32;
  Fiber& f = fibers[current];
  if (!(mask >> lane & 1)) complain("line %d: %s by lane %d, which its mask %08x leaves out", line, kind, lane, mask);
  f.state = IN_WARP;
  f.mask = mask, f.kind = kind, f.given = given, f.line = line;
  bool all = true;
  for (int i = 0; i < 32 && all; ++i)
    if (mask >> i & 1) {
      if (first + i >= total) { complain("line %d: %s waits for lane %d, which the block has not", line, kind, i); break; }
      const Fiber& other = fibers[first + i];
      all = other.state == IN_WARP && other.mask == mask && other.line == line;
    }
  if (!all || message[0]) {
    pause_here();
    return fibers[current].got;
  }
  uint64_t both[32] = {};
  for (int i = 0; i < 32; ++i) if (mask >> i & 1) both[i] = fibers[first + i].given;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) {
      memcpy(fibers[first + i].got, both, sizeof both);
      fibers[first + i].state = READY;
    }
  return fibers[current].got;
}

extern "C" unsigned char __start_cuda_shared[] __attribute__((weak));
extern "C" unsigned char __stop_cuda_shared[] __attribute__((weak));

static void run_block(int order, unsigned seed) {
  std::vector<int> turn(total);
  for (int i = 0; i < total; ++i) turn[i] = order == 1 ? total - 1 - i : i;
  if (order == 2)
    for (int i = total - 1; i > 0; --i) seed = seed * 1664525u + 1013904223u, std::swap(turn[i], turn[(seed >> 8) % (i + 1)]);
  for (Fiber& f : fibers) f.state = READY, f.started = false;
  for (;;) {
    bool moved = false;
    volatile int at = 0;
    for (; at < total; ++at) {
      current = turn[at];
      if (fibers[current].state != READY) continue;
      moved = true;
      threadIdx.x = current;
      if (_setjmp(scheduler) == 0) {
        if (fibers[current].started) _longjmp(fibers[current].at, 1);
        fibers[current].started = true;
        ucontext_t& c = contexts[current];
        getcontext(&c);
        c.uc_stack.ss_sp = stacks + (size_t)current * STACK;
        c.uc_stack.ss_size = STACK;
        c.uc_link = nullptr;
        makecontext(&c, enter, 0);
        setcontext(&c);
      }
      if (message[0]) return;
    }
    if (moved) continue;
    int waiting = 0, done = 0, line = 0, other = 0, votes = 0;
    const Fiber* lost = nullptr;
    for (const Fiber& f : fibers) {
      if (f.state == DONE) ++done;
      if (f.state == IN_WARP) lost = &f;
      if (f.state == AT_BARRIER) {
        ++waiting;
        votes += f.votes != 0;
        if (!line) line = f.line;
        if (f.line != line) other = f.line;
      }
    }
    if (done == total) return;
    if (lost) return complain("deadlock: %s in line %d (mask %08x) that not all its lanes reach", lost->kind, lost->line, lost->mask);
    if (waiting < total) return complain("deadlock: %d of %d threads wait at the barrier in line %d, the others have ended", waiting, total, line);
    if (other) return complain("threads of one block meet at different barriers: lines %d and %d", line, other);
    voted = votes;
    for (Fiber& f : fibers) f.state = READY;
  }
}

const char* run(int blocks, int threads, int shared, void** given, int order) {
  message[0] = 0;
  values = given;
  total = threads;
  gridDim = {(unsigned)blocks, 1, 1};
  blockDim = {(unsigned)threads, 1, 1};
  threadIdx = {0, 0, 0};
  fibers.assign(threads, Fiber());
  contexts.resize(threads);
  stacks = (char*)mmap(nullptr, (size_t)threads * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  memory.resize(shared + 2 * PAD + 256);
  dynamic_start = memory.data() + PAD;
  dynamic_start += -(uintptr_t)dynamic_start & 127;
  for (int block = 0; block < blocks && !message[0]; ++block) {
    blockIdx = {(unsigned)block, 0, 0};
    std::fill(memory.begin(), memory.end(), 0xff);
    if (__start_cuda_shared) memset(__start_cuda_shared, 0xff, __stop_cuda_shared - __start_cuda_shared);
    run_block(order, block + 1);
    const unsigned char* const end = memory.data() + memory.size();
    for (const unsigned char* p = memory.data(); p < end; ++p) {
      if (p == dynamic_start) p += shared;
      if (p < end && *p != 0xff) {
        complain("shared memory written outside of the %d bytes asked for, at byte %d", shared, (int)(p - dynamic_start));
        break;
      }
    }
    if (message[0]) {
      const size_t length = strlen(message);
      snprintf(message + length, sizeof message - length, " (block %d)", block);
    }
  }
  munmap(stacks, (size_t)threads * STACK);
  return message;
}

}  // namespace cuda_on_cpu

// what the compiler calls where an index or an address cannot be right
namespace cuda_on_cpu { struct Source { const char* file; unsigned line, column; }; }
extern "C" void __ubsan_handle_out_of_bounds(cuda_on_cpu::Source* at, uintptr_t index) {
  cuda_on_cpu::complain("line %u: index %ld is outside of its array", at->line, (long)index);
}
extern "C" void __ubsan_handle_type_mismatch_v1(cuda_on_cpu::Source* at, uintptr_t address) {
  cuda_on_cpu::complain("line %u: a misaligned address, %ld bytes after a multiple of 16", at->line, (long)(address & 15));
}
