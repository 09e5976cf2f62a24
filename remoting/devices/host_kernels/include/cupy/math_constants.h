// CUDA's constants, which are always there.
#pragma once
