// Arrays and indices of elementwise and reduction kernels, by CuPy's names.
//
// Shapes and strides are known when a kernel runs, and not when it is compiled as in CuPy: a kernel
// is compiled once for its types.
#pragma once
#pragma GCC system_header

#include <initializer_list>

#define CUPY_FOR(i, n)                                                                     \
  for (ptrdiff_t i = static_cast<ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n); \
       i += static_cast<ptrdiff_t>(blockDim.x) * gridDim.x)
#define CUPY_JIT_MODE 0

typedef ptrdiff_t IndexT;

namespace gpupool {

const int NDIM_MAX = 64;

// What the worker passes for one array or index; host_typed.py has the same.
struct Layout {
  void *data;
  ptrdiff_t size;
  const ptrdiff_t *shape, *strides;
  int ndim, rest;   // of 8 bytes
  ptrdiff_t dense;  // its elements lie in the order of the index
};

}  // namespace gpupool

class CIndexer {
 public:
  explicit CIndexer(const gpupool::Layout &layout)
      : ndim(layout.ndim), layout_(layout), at_(0), known_(false) {}
  const int ndim;
  ptrdiff_t size() const { return layout_.size; }
  void set(ptrdiff_t at) {
    at_ = at;
    known_ = false;
  }
  ptrdiff_t at() const { return at_; }
  const ptrdiff_t *get() {
    if (!known_) {
      ptrdiff_t left = at_;
      for (ptrdiff_t dim = layout_.ndim; --dim > 0;) {
        index_[dim] = left % layout_.shape[dim];
        left /= layout_.shape[dim];
      }
      index_[0] = left;
      known_ = true;
    }
    return index_;
  }

 private:
  const gpupool::Layout &layout_;
  ptrdiff_t at_, index_[gpupool::NDIM_MAX];
  bool known_;
};

template <class T, int = 0, bool = false, bool = false> class CArray : gpupool::Layout {
  typedef gpupool::Layout Layout;

 public:
  using Layout::ndim;
  typedef ptrdiff_t index_t;

  ptrdiff_t size() const { return Layout::size; }
  const ptrdiff_t *shape() const { return Layout::shape; }
  const ptrdiff_t *strides() const { return Layout::strides; }

  T &at(CIndexer &index) const {
    return Layout::dense ? data()[index.at()] : by_index(index.get());
  }
  template <class I> gpupool::IfWhole<I, T &> operator[](I at) { return by_number(at); }
  template <class I> gpupool::IfWhole<I, const T &> operator[](I at) const { return by_number(at); }
  T &operator[](const ptrdiff_t *index) { return by_index(index); }
  const T &operator[](const ptrdiff_t *index) const { return by_index(index); }
  template <class I, size_t N> T &operator[](const I (&index)[N]) { return by_index(index); }
  template <class I, size_t N> const T &operator[](const I (&index)[N]) const {
    return by_index(index);
  }
  template <class I> T &operator[](std::initializer_list<I> index) {
    return by_index(index.begin());
  }
  template <class I> const T &operator[](std::initializer_list<I> index) const {
    return by_index(index.begin());
  }

 private:
  T *data() const { return static_cast<T *>(Layout::data); }
  T &by_number(ptrdiff_t at) const {
    if (Layout::dense) return data()[at];
    ptrdiff_t offset = 0;
    for (ptrdiff_t dim = Layout::ndim; --dim > 0;) {
      offset += Layout::strides[dim] * (at % Layout::shape[dim]);
      at /= Layout::shape[dim];
    }
    if (Layout::ndim) offset += Layout::strides[0] * at;
    return *reinterpret_cast<T *>(static_cast<char *>(Layout::data) + offset);
  }
  template <class I> T &by_index(const I *index) const {
    ptrdiff_t offset = 0;
    for (ptrdiff_t dim = 0; dim < Layout::ndim; dim++)
      offset += Layout::strides[dim] * static_cast<ptrdiff_t>(index[dim]);
    return *reinterpret_cast<T *>(static_cast<char *>(Layout::data) + offset);
  }
};

template <class T> inline T _floor_divide(T x, T y) {
  if (y == 0) return 0;
  T quotient = x / y;
  return quotient - (((x < 0) != (y < 0)) && quotient * y != x);
}
inline float _floor_divide(float x, float y) { return floor(x / y); }
inline double _floor_divide(double x, double y) { return floor(x / y); }
