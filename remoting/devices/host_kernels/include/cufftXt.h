// Types of cuFFT callbacks.
#pragma once
#include <cufft.h>
