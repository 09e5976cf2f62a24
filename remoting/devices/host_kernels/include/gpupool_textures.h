// Textures and surfaces: arrays that a kernel reads or writes by coordinates.
//
// A fetch follows "Texture Fetching" of CUDA's programming guide. Neighbours are mixed in single
// precision, where a GPU rounds their weight to 8 bits. There are no layers, cubes and mipmaps, and
// nothing is gathered.
#pragma once
#pragma GCC system_header

typedef unsigned long long cudaTextureObject_t;
typedef unsigned long long cudaSurfaceObject_t;
enum cudaSurfaceBoundaryMode {
  cudaBoundaryModeZero = 0,
  cudaBoundaryModeClamp = 1,
  cudaBoundaryModeTrap = 2
};

namespace gpupool {

const unsigned long long TEXTURE = 0x67707465787475, SURFACE = 0x67707375726661;
enum { SIGNED, UNSIGNED, FLOATING };  // cudaChannelFormatKind
enum { WRAP, CLAMP, MIRROR, BORDER };  // cudaTextureAddressMode

// What the worker passes for one texture or surface; host_textures.py has the same.
struct Look {
  unsigned long long mark;
  char *data;
  long long lengths[3], steps[3];  // steps: bytes from an element to the next along each axis
  int bits, channels, kind, modes[3], linear, as_fraction, normalized, srgb;
  float border[4];
};

// One channel as a texture unit gives it: 32 bits of an integer or of a float.
union Word {
  unsigned bits;
  float number;
};
struct Texel {
  Word at[4];
};

inline const Look &look_of(unsigned long long object, unsigned long long mark) {
  const Look *found = reinterpret_cast<const Look *>(object);
  if (!found || found->mark != mark)
    fail(700, mark == TEXTURE ? "a kernel reads a texture by a number that is no texture object"
                              : "a kernel uses a surface by a number that is no surface object");
  return *found;
}

inline float from_srgb(float x) {
  return x <= 0.04045f ? x / 12.92f : powf((x + 0.055f) / 1.055f, 2.4f);
}

// A channel's bits as a number from -1 to 1, or from 0 to 1.
inline float fraction(const Look &look, unsigned bits, int channel) {
  if (look.kind == SIGNED) {
    float made = static_cast<float>(static_cast<int>(bits)) / (look.bits == 8 ? 127.f : 32767.f);
    return made < -1 ? -1 : made;
  }
  float made = static_cast<float>(bits) / (look.bits == 8 ? 255.f : 65535.f);
  return look.srgb && look.bits == 8 && channel < 3 ? from_srgb(made) : made;
}

inline Word channel_at(const Look &look, const char *from, int channel) {
  Word made = {0};
  if (look.bits == 8) {
    unsigned char bits = static_cast<unsigned char>(from[channel]);
    made.bits = look.kind == SIGNED ? static_cast<signed char>(bits) : bits;
  } else if (look.bits == 16) {
    unsigned short bits;
    memcpy(&bits, from + channel * 2, sizeof bits);
    if (look.kind == FLOATING) made.number = widened(bits);
    else made.bits = look.kind == SIGNED ? static_cast<short>(bits) : bits;
  } else {
    memcpy(&made, from + channel * 4, sizeof made);
  }
  if (look.as_fraction && look.kind != FLOATING) made.number = fraction(look, made.bits, channel);
  return made;
}

// The element at an index; -1 along an axis is beyond the border.
inline Texel element(const Look &look, long long x, long long y, long long z) {
  Texel made = {};
  bool beyond = x < 0 || y < 0 || z < 0;
  const char *from = look.data + x * look.steps[0] + y * look.steps[1] + z * look.steps[2];
  for (int channel = 0; channel < look.channels; channel++)
    if (beyond) made.at[channel].number = look.border[channel];
    else made.at[channel] = channel_at(look, from, channel);
  return made;
}

// The two elements along an axis that a coordinate lies between, and the weight of the second.
struct Between {
  long long at[2];
  float weight;
};

inline long long within(int mode, long long at, long long length) {
  if (at >= 0 && at < length) return at;
  if (mode == BORDER) return -1;
  if (mode == WRAP) return at < 0 ? at + length : at - length;
  return at < 0 ? 0 : length - 1;
}

inline void find(const Look &look, int axis, float at, Between &found) {
  int mode = look.modes[axis];
  long long length = look.lengths[axis];
  if (look.normalized) {
    float whole = floorf(at);
    if (mode == WRAP) at -= whole;
    if (mode == MIRROR) at = fmodf(whole, 2) != 0 ? 1 - (at - whole) : at - whole;
    at *= static_cast<float>(length);
  }
  if (look.linear) at -= 0.5f;
  // A number may be too large for an index, or be none.
  float most = static_cast<float>(length) + 1;
  at = at != at ? 0 : at < -2 ? -2 : at > most ? most : at;
  float low = floorf(at);
  found.at[0] = within(mode, static_cast<long long>(low), length);
  found.at[1] = within(mode, static_cast<long long>(low) + 1, length);
  found.weight = at - low;
}

inline Texel sampled(const Look &look, int axes, float x, float y, float z) {
  Between along[3] = {};
  find(look, 0, x, along[0]);
  if (axes > 1) find(look, 1, y, along[1]);
  if (axes > 2) find(look, 2, z, along[2]);
  if (!look.linear) return element(look, along[0].at[0], along[1].at[0], along[2].at[0]);
  Texel made = {};
  for (int corner = 0; corner < 1 << axes; corner++) {
    float weight = 1;
    for (int axis = 0; axis < axes; axis++)
      weight *= corner >> axis & 1 ? along[axis].weight : 1 - along[axis].weight;
    if (weight == 0) continue;  // so that an infinite neighbour is none
    Texel one = element(look, along[0].at[corner & 1], along[1].at[corner >> 1 & 1],
                        along[2].at[corner >> 2]);
    for (int channel = 0; channel < look.channels; channel++)
      made.at[channel].number += weight * one.at[channel].number;
  }
  return made;
}

template <class T> inline T word_as(Word word) { return static_cast<T>(word.bits); }
template <> inline float word_as<float>(Word word) { return word.number; }

// The types that a fetch returns.
template <class T> struct Fetched;
#define GP_FETCHED(T, name)                                                        \
  template <> struct Fetched<T> {                                                  \
    static T of(const Texel &texel) { return word_as<T>(texel.at[0]); }            \
  };                                                                               \
  template <> struct Fetched<name##1> {                                            \
    static name##1 of(const Texel &texel) { return {word_as<T>(texel.at[0])}; }    \
  };                                                                               \
  template <> struct Fetched<name##2> {                                            \
    static name##2 of(const Texel &texel) {                                        \
      return {word_as<T>(texel.at[0]), word_as<T>(texel.at[1])};                   \
    }                                                                              \
  };                                                                               \
  template <> struct Fetched<name##4> {                                            \
    static name##4 of(const Texel &texel) {                                        \
      return {word_as<T>(texel.at[0]), word_as<T>(texel.at[1]),                    \
              word_as<T>(texel.at[2]), word_as<T>(texel.at[3])};                   \
    }                                                                              \
  };
GP_FETCHED(signed char, char) GP_FETCHED(uchar, uchar) GP_FETCHED(short, short)
GP_FETCHED(ushort, ushort) GP_FETCHED(int, int) GP_FETCHED(uint, uint) GP_FETCHED(float, float)
#undef GP_FETCHED
template <> struct Fetched<char> {
  static char of(const Texel &texel) { return word_as<char>(texel.at[0]); }
};

inline Texel fetched(unsigned long long object, int at) {
  const Look &look = look_of(object, TEXTURE);
  return at < 0 || at >= look.lengths[0] ? Texel() : element(look, at, 0, 0);
}

// Where a surface is read or written, by bytes along its first axis; null if nowhere.
inline char *surface_at(unsigned long long object, size_t size, int x, int y, int z,
                        cudaSurfaceBoundaryMode mode) {
  const Look &look = look_of(object, SURFACE);
  if (x % static_cast<int>(size)) fail(716, "a kernel uses a surface at a byte between elements");
  long long at[3] = {x, y, z}, most[3] = {look.lengths[0] * look.steps[0], look.lengths[1],
                                          look.lengths[2]};
  most[0] -= static_cast<long long>(size);
  most[1]--;
  most[2]--;
  char *found = look.data;
  for (int axis = 0; axis < 3; axis++) {
    if (at[axis] < 0 || at[axis] > most[axis]) {
      if (mode == cudaBoundaryModeTrap) fail(719, "a kernel uses a surface beyond its border");
      if (mode == cudaBoundaryModeZero || most[axis] < 0) return nullptr;
      at[axis] = at[axis] < 0 ? 0 : most[axis];
    }
    found += at[axis] * (axis ? look.steps[axis] : 1);
  }
  return found;
}

// The types that surfaces have: of 1, 2, 4, 8 or 16 bytes.
template <class T> inline T surface_read(char *from) {
  static_assert(sizeof(T) <= 16 && !(sizeof(T) & (sizeof(T) - 1)), "no surface has this type");
  T made;
  memset(&made, 0, sizeof made);
  if (from) memcpy(&made, from, sizeof made);
  return made;
}
template <class T> inline void surface_write(char *to, const T &value) {
  static_assert(sizeof(T) <= 16 && !(sizeof(T) & (sizeof(T) - 1)), "no surface has this type");
  if (to) memcpy(to, &value, sizeof value);
}

}  // namespace gpupool

// Each fetch returns a value, or writes it where a pointer says.
#define GP_TEXTURE(name, declared, texel)                                             \
  template <class T> inline T name declared { return gpupool::Fetched<T>::of(texel); }
#define GP_LOOK gpupool::look_of(object, gpupool::TEXTURE)
#define GP_X cudaTextureObject_t object, float x
GP_TEXTURE(tex1Dfetch, (cudaTextureObject_t object, int x), gpupool::fetched(object, x))
GP_TEXTURE(tex1D, (GP_X), gpupool::sampled(GP_LOOK, 1, x, 0, 0))
GP_TEXTURE(tex2D, (GP_X, float y), gpupool::sampled(GP_LOOK, 2, x, y, 0))
GP_TEXTURE(tex3D, (GP_X, float y, float z), gpupool::sampled(GP_LOOK, 3, x, y, z))
template <class T> inline void tex1Dfetch(T *to, cudaTextureObject_t object, int x) {
  *to = tex1Dfetch<T>(object, x);
}
template <class T> inline void tex1D(T *to, GP_X) { *to = tex1D<T>(object, x); }
template <class T> inline void tex2D(T *to, GP_X, float y) { *to = tex2D<T>(object, x, y); }
template <class T> inline void tex3D(T *to, GP_X, float y, float z) {
  *to = tex3D<T>(object, x, y, z);
}
#undef GP_X
#undef GP_LOOK
#undef GP_TEXTURE

// The byte along x comes first, as a program of CUDA says it.
#define GP_LIST(...) __VA_ARGS__
#define GP_MODE cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap
#define GP_SURFACE(n, declared, given, place)                                                  \
  template <class T> inline T surf##n##Dread(cudaSurfaceObject_t object, GP_LIST declared,     \
                                             GP_MODE) {                                        \
    return gpupool::surface_read<T>(                                                           \
        gpupool::surface_at(object, sizeof(T), GP_LIST place, mode));                          \
  }                                                                                            \
  template <class T> inline void surf##n##Dread(T *to, cudaSurfaceObject_t object,             \
                                                GP_LIST declared, GP_MODE) {                   \
    *to = surf##n##Dread<T>(object, GP_LIST given, mode);                                      \
  }                                                                                            \
  template <class T> inline void surf##n##Dwrite(T value, cudaSurfaceObject_t object,          \
                                                 GP_LIST declared, GP_MODE) {                  \
    gpupool::surface_write(                                                                    \
        gpupool::surface_at(object, sizeof(T), GP_LIST place, mode), value);                   \
  }
GP_SURFACE(1, (int x), (x), (x, 0, 0))
GP_SURFACE(2, (int x, int y), (x, y), (x, y, 0))
GP_SURFACE(3, (int x, int y, int z), (x, y, z), (x, y, z))
#undef GP_SURFACE
#undef GP_MODE
#undef GP_LIST
