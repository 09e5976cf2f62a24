"""The C++ of `thrust` and `cub` in kernels: algorithms of one thread, sums of a warp and a block.

Thrust in a kernel runs in the thread that calls it, under `thrust.device` as under `thrust.seq`. So
plain loops do the same, and neither kind of GPU needs a compiler that can take Thrust's headers:
CuPy itself calls nvcc for them. A row is anything with `row[i]`: a pointer, or an iterator below.
Elements of half precision are read as `float` (`plain`) and rounded when they are stored (`put`).
"""

from __future__ import annotations

HALF = r"""
namespace gpjit {
namespace rows {
__device__ inline float plain(const __half &value) { return static_cast<float>(value); }
}
}
"""

ALGORITHMS = r"""
namespace gpjit {
namespace rows {
// Elements of an array from one on; two iterators of an array differ by their places.
template <class T> struct Strided {
  T *data;
  Int stride, at;
  __device__ T &operator[](Int i) const {
    return *reinterpret_cast<T *>(reinterpret_cast<char *>(data) + (at + i) * stride);
  }
  __device__ Strided operator+(Int by) const { return Strided{data, stride, at + by}; }
  __device__ Strided operator-(Int by) const { return Strided{data, stride, at - by}; }
  __device__ Int operator-(const Strided &other) const { return at - other.at; }
};
template <class T> __device__ Strided<T> begin(const View<T, 1> &array) {
  return Strided<T>{array.data, array.strides[0], 0};
}
template <class T> __device__ Strided<T> end(const View<T, 1> &array) {
  return begin(array) + array.shape[0];
}
template <class T> struct Constant {
  T value;
  Int at;
  __device__ T operator[](Int) const { return value; }
  __device__ Constant operator+(Int by) const { return Constant{value, at + by}; }
  __device__ Constant operator-(Int by) const { return Constant{value, at - by}; }
  __device__ Int operator-(const Constant &other) const { return at - other.at; }
};
template <class T> struct Counting {
  T value;
  __device__ T operator[](Int i) const { return T(value + i); }
  __device__ Counting operator+(Int by) const { return Counting{T(value + by)}; }
  __device__ Counting operator-(Int by) const { return Counting{T(value - by)}; }
  __device__ Int operator-(const Counting &other) const { return Int(value) - Int(other.value); }
};

template <class T> __device__ T plain(const T &value) { return value; }
template <class T, class V> __device__ void put(T &to, const V &value) {
  to = static_cast<T>(value);
}
template <class R> using Element = decltype(plain(R{}[0]));
template <class R> __device__ void exchange(R row, Int i, Int j) {
  auto held = row[i];
  row[i] = row[j];
  row[j] = held;
}
// Stands for the values where an algorithm has only keys.
struct Nothing {
  __device__ int operator[](Int) const { return 0; }
  __device__ Nothing operator+(Int) const { return *this; }
};
__device__ inline void exchange(Nothing, Int, Int) {}
template <class R, class V> __device__ void put_at(R row, Int i, const V &value) {
  put(row[i], value);
}
template <class V> __device__ void put_at(Nothing, Int, const V &) {}

template <class A, class R> __device__ R copy(A first, A last, R result) {
  Int n = last - first;
  for (Int i = 0; i < n; i++) put(result[i], plain(first[i]));
  return result + n;
}
template <class A, class V> __device__ void fill(A first, A last, V value) {
  for (Int i = 0, n = last - first; i < n; i++) put(first[i], value);
}
template <class A, class T = Element<A>> __device__ void sequence(
    A first, A last, T init = T(0), T step = T(1)) {
  for (Int i = 0, n = last - first; i < n; i++) put(first[i], T(init + T(i) * step));
}
template <class M, class A, class R> __device__ R gather(M first, M last, A input, R result) {
  Int n = last - first;
  for (Int i = 0; i < n; i++) put(result[i], plain(input[Int(first[i])]));
  return result + n;
}
template <class A, class M, class R> __device__ void scatter(A first, A last, M map, R result) {
  for (Int i = 0, n = last - first; i < n; i++) put(result[Int(map[i])], plain(first[i]));
}
template <class A, class B> __device__ B swap_ranges(A first, A last, B other) {
  Int n = last - first;
  for (Int i = 0; i < n; i++) {
    auto held = plain(first[i]);
    put(first[i], plain(other[i]));
    put(other[i], held);
  }
  return other + n;
}
template <class A> __device__ void reverse(A first, A last) {
  for (Int i = 0, n = last - first; i < n / 2; i++) exchange(first, i, n - 1 - i);
}
template <class A, class R> __device__ R reverse_copy(A first, A last, R result) {
  Int n = last - first;
  for (Int i = 0; i < n; i++) put(result[i], plain(first[n - 1 - i]));
  return result + n;
}
template <class A, class V> __device__ void replace(A first, A last, V old, V with) {
  for (Int i = 0, n = last - first; i < n; i++)
    if (plain(first[i]) == old) put(first[i], with);
}
template <class A, class R, class V> __device__ R replace_copy(
    A first, A last, R result, V old, V with) {
  Int n = last - first;
  for (Int i = 0; i < n; i++) {
    auto value = plain(first[i]);
    if (value == old) put(result[i], with);
    else put(result[i], value);
  }
  return result + n;
}
template <class A, class R, class V> __device__ R remove_copy(
    A first, A last, R result, V value) {
  Int made = 0;
  for (Int i = 0, n = last - first; i < n; i++)
    if (!(plain(first[i]) == value)) put(result[made++], plain(first[i]));
  return result + made;
}
template <class A, class V> __device__ A remove(A first, A last, V value) {
  return remove_copy(first, last, first, value);
}

// --- looks ---
template <class A, class V> __device__ A find(A first, A last, V value) {
  Int i = 0, n = last - first;
  while (i < n && !(plain(first[i]) == value)) i++;
  return first + i;
}
template <class A, class V> __device__ int count(A first, A last, V value) {
  int made = 0;
  for (Int i = 0, n = last - first; i < n; i++) made += plain(first[i]) == value;
  return made;
}
template <class A, class B> __device__ Int common_prefix(A first, A last, B other) {
  Int i = 0, n = last - first;
  while (i < n && plain(first[i]) == plain(other[i])) i++;
  return i;
}
template <class A, class B> __device__ bool equal(A first, A last, B other) {
  return common_prefix(first, last, other) == last - first;
}
template <class A, class B> __device__ Pack<A, B> mismatch(A first, A last, B other) {
  Int i = common_prefix(first, last, other);
  return Pack<A, B>::of(first + i, other + i);
}
template <class A> __device__ A is_sorted_until(A first, A last) {
  Int i = 1, n = last - first;
  while (i < n && !before(plain(first[i]), plain(first[i - 1]))) i++;
  return i < n ? first + i : last;
}
template <class A> __device__ bool is_sorted(A first, A last) {
  return last - is_sorted_until(first, last) == 0;
}
// The first place whose element is not before the value; with `behind`, behind all that equal it.
template <class A, class V> __device__ Int bound(A first, Int n, V value, bool behind) {
  Int low = 0, high = n;
  while (low < high) {
    Int middle = low + (high - low) / 2;
    auto each = plain(first[middle]);
    if (behind ? !before(value, each) : before(each, value)) low = middle + 1;
    else high = middle;
  }
  return low;
}
template <class A, class V> __device__ A lower_bound(A first, A last, V value) {
  return first + bound(first, last - first, value, false);
}
template <class A, class V> __device__ A upper_bound(A first, A last, V value) {
  return first + bound(first, last - first, value, true);
}
template <class A, class V> __device__ Pack<A, A> equal_range(A first, A last, V value) {
  return Pack<A, A>::of(lower_bound(first, last, value), upper_bound(first, last, value));
}
template <class A, class V> __device__ bool binary_search(A first, A last, V value) {
  Int n = last - first, at = bound(first, n, value, false);
  return at < n && !before(value, plain(first[at]));
}
template <class A, class V, class R> __device__ R bounds(
    A first, A last, V values, V end, R result, bool behind) {
  Int n = end - values;
  for (Int i = 0; i < n; i++)
    put(result[i], bound(first, last - first, plain(values[i]), behind));
  return result + n;
}
template <class A, class V, class R> __device__ R lower_bound(
    A first, A last, V values, V end, R result) {
  return bounds(first, last, values, end, result, false);
}
template <class A, class V, class R> __device__ R upper_bound(
    A first, A last, V values, V end, R result) {
  return bounds(first, last, values, end, result, true);
}
template <class A, class V, class R> __device__ R binary_search(
    A first, A last, V values, V end, R result) {
  Int n = end - values;
  for (Int i = 0; i < n; i++) put(result[i], binary_search(first, last, plain(values[i])));
  return result + n;
}

// --- sums ---
template <class A, class T = Element<A>> __device__ T reduce(A first, A last, T init = T(0)) {
  for (Int i = 0, n = last - first; i < n; i++) init = T(init + static_cast<T>(plain(first[i])));
  return init;
}
template <class A, class B, class T> __device__ T inner_product(
    A first, A last, B other, T init) {
  for (Int i = 0, n = last - first; i < n; i++)
    init = T(init + T(static_cast<T>(plain(first[i])) * static_cast<T>(plain(other[i]))));
  return init;
}
template <class A, class R> __device__ R adjacent_difference(A first, A last, R result) {
  Int n = last - first;
  Element<A> old{};
  for (Int i = 0; i < n; i++) {
    Element<A> value = plain(first[i]);
    put(result[i], i ? Element<A>(value - old) : value);
    old = value;
  }
  return result + n;
}
// Keys that follow each other and are equal are one group, which begins with the first number.
template <class K, class A, class R, class T> __device__ R scan(
    K keys, Int n, A values, R result, T init, bool inclusive) {
  T sum = init;
  for (Int i = 0; i < n; i++) {
    bool begins = i == 0 || !(plain(keys[i]) == plain(keys[i - 1]));
    if (begins) sum = init;
    T value = static_cast<T>(plain(values[i])), next = begins && inclusive ? value : T(sum + value);
    put(result[i], inclusive ? next : sum);
    sum = next;
  }
  return result + n;
}
template <class A, class R> __device__ R inclusive_scan(A first, A last, R result) {
  return scan(Nothing{}, last - first, first, result, Element<A>(0), true);
}
template <class A, class R, class T = Element<A>> __device__ R exclusive_scan(
    A first, A last, R result, T init = T(0)) {
  return scan(Nothing{}, last - first, first, result, init, false);
}
template <class K, class A, class R> __device__ R inclusive_scan_by_key(
    K first, K last, A values, R result) {
  return scan(first, last - first, values, result, Element<A>(0), true);
}
template <class K, class A, class R, class T = Element<A>> __device__ R exclusive_scan_by_key(
    K first, K last, A values, R result, T init = T(0)) {
  return scan(first, last - first, values, result, init, false);
}
template <class K, class A, class L, class R> __device__ Pack<L, R> reduce_by_key(
    K first, K last, A values, L keys, R result) {
  Int n = last - first, made = 0;
  Element<A> sum{};
  for (Int i = 0; i < n; i++) {
    bool same = i && plain(first[i]) == plain(first[i - 1]);
    sum = same ? Element<A>(sum + plain(values[i])) : Element<A>(plain(values[i]));
    if (!same) put(keys[made++], plain(first[i]));
    put(result[made - 1], sum);
  }
  return Pack<L, R>::of(keys + made, result + made);
}
template <class K, class V> __device__ Int distinct(K keys, Int n, V values) {
  Int made = n > 0;
  for (Int i = 1; i < n; i++)
    if (!(plain(keys[i]) == plain(keys[made - 1]))) {
      put(keys[made], plain(keys[i]));
      put_at(values, made++, plain(values[i]));
    }
  return made;
}
template <class K> __device__ K unique(K first, K last) {
  return first + distinct(first, last - first, Nothing{});
}
template <class K, class V> __device__ Pack<K, V> unique_by_key(K first, K last, V values) {
  Int made = distinct(first, last - first, values);
  return Pack<K, V>::of(first + made, values + made);
}

// --- sets: sorted rows, in which an element can be there several times ---
// Of an element in both rows that of the first is taken.
template <bool LEFT, bool RIGHT, bool BOTH, class K, class L, class V, class W, class R, class S>
__device__ Int set_operation(K a, K a_end, L b, L b_end, V va, W vb, R keys, S values) {
  Int i = 0, j = 0, n = a_end - a, m = b_end - b, made = 0;
  while (i < n || j < m) {
    bool left = i < n && (j >= m || before(plain(a[i]), plain(b[j])));
    bool right = !left && (i >= n || before(plain(b[j]), plain(a[i])));
    if (left ? LEFT : right ? RIGHT : BOTH) {
      if (right) {
        put(keys[made], plain(b[j]));
        put_at(values, made++, plain(vb[j]));
      } else {
        put(keys[made], plain(a[i]));
        put_at(values, made++, plain(va[i]));
      }
    }
    i += !right;
    j += !left;
  }
  return made;
}
#define GPJIT_SET(name, left, right, both)                                                      \
  template <class K, class L, class R> __device__ R name(K a, K a_end, L b, L b_end, R keys) {  \
    Nothing none;                                                                               \
    return keys + set_operation<left, right, both>(a, a_end, b, b_end, none, none, keys, none); \
  }                                                                                             \
  template <class K, class L, class V, class W, class R, class S>                               \
  __device__ Pack<R, S> name##_by_key(                                                          \
      K a, K a_end, L b, L b_end, V va, W vb, R keys, S values) {                               \
    Int made = set_operation<left, right, both>(a, a_end, b, b_end, va, vb, keys, values);      \
    return Pack<R, S>::of(keys + made, values + made);                                          \
  }
GPJIT_SET(set_difference, true, false, false)
GPJIT_SET(set_intersection, false, false, true)
GPJIT_SET(set_symmetric_difference, true, true, false)
GPJIT_SET(set_union, true, true, true)
template <class K, class L, class V, class R, class S> __device__ Pack<R, S>
set_intersection_by_key(K a, K a_end, L b, L b_end, V va, R keys, S values) {
  return set_intersection_by_key(a, a_end, b, b_end, va, Nothing{}, keys, values);
}

// --- sorts: stable and in place, for a thread has no memory to spare ---
// Lets the parts [a, b) and [b, c) change places: each is turned round, and then both.
template <class K, class V> __device__ void rotate(K keys, V values, Int a, Int b, Int c) {
  for (int part = 0; part < 3; part++) {
    Int low = part == 1 ? b : a, high = (part == 0 ? b : c) - 1;
    for (; low < high; low++, high--) {
      exchange(keys, low, high);
      exchange(values, low, high);
    }
  }
}
// Merges two sorted parts, [a, b) and [b, c), by SymMerge (Kim and Kutzner, ESA 2004): a binary
// search finds the cut around the middle at which as many elements of both parts change sides, a
// rotation changes them, and both halves are merged likewise. They wait in a list, because the
// stack of a kernel is small.
template <class K, class V> __device__ void merge(K keys, V values, Int first, Int cut, Int last) {
  Int waiting[64][3], count = 1;
  waiting[0][0] = first, waiting[0][1] = cut, waiting[0][2] = last;
  while (count) {
    count--;
    Int a = waiting[count][0], b = waiting[count][1], c = waiting[count][2];
    if (a >= b || b >= c) continue;
    if (c - a == 2) {
      if (before(plain(keys[b]), plain(keys[a]))) rotate(keys, values, a, b, c);
      continue;
    }
    Int middle = a + (c - a) / 2, sum = middle + b;
    Int low = b > middle ? sum - c : a, high = b > middle ? middle : b;
    while (low < high) {
      Int at = low + (high - low) / 2;
      if (before(plain(keys[sum - 1 - at]), plain(keys[at]))) high = at;
      else low = at + 1;
    }
    Int end = sum - low;
    rotate(keys, values, low, b, end);
    // The smaller half first, so that the list holds one for each halving at most.
    bool left = middle - a > c - middle;
    for (int turn = 0; turn < 2; turn++) {
      bool lower = left == (turn == 0);
      waiting[count][0] = lower ? a : middle;
      waiting[count][1] = lower ? low : end;
      waiting[count][2] = lower ? middle : c;
      count++;
    }
  }
}
template <class K, class V> __device__ void stable_sort_by_key(K first, K last, V values) {
  const Int run = 8;
  Int n = last - first;
  for (Int begin = 0; begin < n; begin += run)
    for (Int i = begin + 1; i < n && i < begin + run; i++)
      for (Int at = i; at > begin && before(plain(first[at]), plain(first[at - 1])); at--) {
        exchange(first, at, at - 1);
        exchange(values, at, at - 1);
      }
  for (Int width = run; width < n; width *= 2)
    for (Int begin = 0; begin + width < n; begin += 2 * width) {
      Int end = begin + 2 * width;
      merge(first, values, begin, begin + width, end < n ? end : n);
    }
}
template <class K, class V> __device__ void sort_by_key(K first, K last, V values) {
  stable_sort_by_key(first, last, values);
}
template <class K> __device__ void stable_sort(K first, K last) {
  stable_sort_by_key(first, last, Nothing{});
}
template <class K> __device__ void sort(K first, K last) { stable_sort(first, last); }
}
}
"""

REDUCTIONS = r"""
namespace gpjit {
namespace cub {
struct Sum { template <class T> __device__ T operator()(T a, T b) const { return T(a + b); } };
struct Max {
  template <class T> __device__ T operator()(T a, T b) const { return before(a, b) ? b : a; }
};
struct Min {
  template <class T> __device__ T operator()(T a, T b) const { return before(b, a) ? b : a; }
};

// The value of the thread `by` lanes above, of any type: threads exchange words of 32 bits.
template <class T> __device__ T shuffle_down(unsigned int mask, const T &value, unsigned int by) {
  const int count = (sizeof(T) + 3) / 4;
  unsigned int words[count] = {};
  memcpy(words, &value, sizeof(T));
  for (int i = 0; i < count; i++) words[i] = __shfl_down_sync(mask, words[i], by);
  T made;
  memcpy(&made, words, sizeof(T));
  return made;
}
// Neighbours first, as CUB adds them: so the rounding is CUB's. The first lane has the result.
template <class T, class F> __device__ T warp_reduce(T value, int lane, int lanes, F f) {
  unsigned int mask = lanes < 32 ? (1u << lanes) - 1 : 0xffffffffu;
  for (int by = 1; by < 32; by *= 2) {
    T other = shuffle_down(mask, value, by);
    if (lane + by < lanes) value = f(value, other);
  }
  return value;
}
template <class T> struct WarpReduce {
  struct TempStorage {};
  __device__ explicit WarpReduce(TempStorage &) {}
  template <class F> __device__ T Reduce(T value, F f) const {
    int rank = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return warp_reduce(value, rank & 31, 32, f);
  }
  __device__ T Sum(T value) const { return Reduce(value, cub::Sum{}); }
};
template <class T, int N> struct BlockReduce {
  struct TempStorage { T warps[(N + 31) / 32]; };
  TempStorage &storage;
  __device__ explicit BlockReduce(TempStorage &given) : storage(given) {}
  template <class F> __device__ T Reduce(T value, F f) const {
    int rank = threadIdx.x, begin = rank & ~31;
    value = warp_reduce(value, rank - begin, N - begin < 32 ? N - begin : 32, f);
    if (rank == begin) storage.warps[rank / 32] = value;
    __syncthreads();
    if (rank == 0)
      for (int warp = 1; warp < (N + 31) / 32; warp++) value = f(value, storage.warps[warp]);
    return value;
  }
  __device__ T Sum(T value) const { return Reduce(value, cub::Sum{}); }
};
}
}
"""
