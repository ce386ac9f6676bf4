// XXH3 with 128 bits, without a seed and with the default secret: the checksums of documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/cpu.hpp"
#include "core/base/multiply_128.hpp"

namespace tokpack {

// As https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md specifies it.
// REQUIRES: this machine has the level.
Uint128 xxh3_128(std::span<const std::uint8_t> data, Level level);

// What the kernels of xxh3_128 share.
namespace xxh3 {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kStripe = kLanes * sizeof(std::uint64_t);
constexpr std::size_t kSecretBytes = 192;
constexpr std::size_t kStripes = (kSecretBytes - kStripe) / 8;  // of a block
constexpr std::uint64_t kScramble = 0x9E3779B1;

extern const std::uint8_t kSecret[kSecretBytes];

// Mixes stripes into the lanes; stripe i with the secret from byte 8 * i on.
using Accumulate = void (*)(std::uint64_t* lanes, const std::uint8_t* in,
                            const std::uint8_t* secret, std::size_t stripes);

// Mixes blocks of kStripes stripes into the lanes, each followed by a scramble.
using AccumulateBlocks = void (*)(std::uint64_t* lanes, const std::uint8_t* in, std::size_t blocks);

struct Kernels {
  Accumulate accumulate;
  AccumulateBlocks accumulate_blocks;
};

}  // namespace xxh3

}  // namespace tokpack
