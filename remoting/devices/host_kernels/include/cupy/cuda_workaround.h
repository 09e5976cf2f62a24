// What CuPy takes of the C++ library.
#pragma once
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
