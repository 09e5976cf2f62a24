// The upper half of a float's bits; it is computed in single precision and rounded.
#pragma once
#pragma GCC system_header

class bfloat16 {
 public:
  bfloat16() = default;
  template <class T> bfloat16(T value) {
    unsigned bits = gpupool::same_bits<unsigned>(static_cast<float>(value));
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    bits_ = static_cast<unsigned short>((nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  }
  operator float() const { return gpupool::same_bits<float>(static_cast<unsigned>(bits_) << 16); }
  template <class T> bfloat16 &operator+=(T by) { return *this = float(*this) + float(by); }
  template <class T> bfloat16 &operator-=(T by) { return *this = float(*this) - float(by); }
  template <class T> bfloat16 &operator*=(T by) { return *this = float(*this) * float(by); }
  template <class T> bfloat16 &operator/=(T by) { return *this = float(*this) / float(by); }

 private:
  unsigned short bits_;
};
