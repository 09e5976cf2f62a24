// Its names are always there: gpupool_cuda.h is included before each kernel.
#pragma once
