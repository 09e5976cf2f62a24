// Atomic operations, which are always there.
#pragma once
