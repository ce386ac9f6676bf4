#include "core/documents/xxh3.hpp"

#include <bit>
#include <cstring>

#include "core/base/load.hpp"

namespace tokpack {

namespace xxh3 {

const std::uint8_t kSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

#if defined(__x86_64__)
extern const Kernels kKernelsAvx2;
#endif

}  // namespace xxh3

namespace {

using xxh3::kLanes;
using xxh3::kSecret;
using xxh3::kSecretBytes;
using xxh3::kStripe;
using xxh3::kStripes;

constexpr std::uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr std::uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F,
                        kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63,
                        kPrime64_5 = 0x27D4EB2F165667C5;
constexpr std::uint64_t kMix1 = 0x165667919E3779F9, kMix2 = 0x9FB21C651E98DF25;

std::uint32_t read32(const std::uint8_t* in) {
  const auto value = load<std::uint32_t>(in);
  return std::endian::native == std::endian::little ? value : __builtin_bswap32(value);
}

std::uint64_t read64(const std::uint8_t* in) {
  const auto value = load<std::uint64_t>(in);
  return std::endian::native == std::endian::little ? value : __builtin_bswap64(value);
}

// The exclusive or of two words of the secret.
std::uint64_t secret_pair(std::size_t at) {
  return read64(kSecret + at) ^ read64(kSecret + at + 8);
}

std::uint64_t folded(std::uint64_t a, std::uint64_t b) {
  const Uint128 product = multiply_128(a, b);
  return product.low ^ product.high;
}

std::uint64_t avalanche(std::uint64_t x) {
  x = (x ^ x >> 37) * kMix1;
  return x ^ x >> 32;
}

std::uint64_t avalanche_short(std::uint64_t x) {
  x = (x ^ x >> 33) * kPrime64_2;
  x = (x ^ x >> 29) * kPrime64_3;
  return x ^ x >> 32;
}

Uint128 hash_0() { return {avalanche_short(secret_pair(80)), avalanche_short(secret_pair(64))}; }

Uint128 hash_1_to_3(const std::uint8_t* in, std::size_t size) {
  const std::uint32_t combined = in[size - 1] | static_cast<std::uint32_t>(size) << 8 |
                                 static_cast<std::uint32_t>(in[0]) << 16 |
                                 static_cast<std::uint32_t>(in[size / 2]) << 24;
  const std::uint64_t low = (read32(kSecret) ^ read32(kSecret + 4)) ^ combined;
  const std::uint64_t high =
      (read32(kSecret + 8) ^ read32(kSecret + 12)) ^ std::rotl(__builtin_bswap32(combined), 13);
  return {avalanche_short(high), avalanche_short(low)};
}

Uint128 hash_4_to_8(const std::uint8_t* in, std::size_t size) {
  const std::uint64_t combined = read32(in) | static_cast<std::uint64_t>(read32(in + size - 4))
                                                  << 32;
  auto [high, low] = multiply_128(secret_pair(16) ^ combined, kPrime64_1 + (size << 2));
  high += low << 1;
  low ^= high >> 3;
  low = (low ^ low >> 35) * kMix2;
  return {avalanche(high), low ^ low >> 28};
}

Uint128 hash_9_to_16(const std::uint8_t* in, std::size_t size) {
  const std::uint64_t first = read64(in), last = read64(in + size - 8);
  auto [high, low] = multiply_128(secret_pair(32) ^ first ^ last, kPrime64_1);
  const std::uint64_t second = secret_pair(48) ^ last;
  low += static_cast<std::uint64_t>(size - 1) << 54;
  high += second + (second & 0xFFFFFFFF) * (kPrime32_2 - 1);
  low ^= __builtin_bswap64(high);
  const Uint128 product = multiply_128(low, kPrime64_2);
  return {avalanche(product.high + high * kPrime64_2), avalanche(product.low)};
}

// Two sums, of inputs of 17 to 240 bytes.
struct Sums {
  std::uint64_t first, second;

  // Mixes two times 16 bytes with 32 of the secret.
  void mix(const std::uint8_t* a, const std::uint8_t* b, std::size_t at) {
    first += mixed(a, at);
    second += mixed(b, at + 16);
    first ^= read64(b) + read64(b + 8);
    second ^= read64(a) + read64(a + 8);
  }

  Uint128 hash(std::size_t size) const {
    const std::uint64_t high = first * kPrime64_1 + second * kPrime64_4 + size * kPrime64_2;
    return {0 - avalanche(high), avalanche(first + second)};
  }

 private:
  static std::uint64_t mixed(const std::uint8_t* in, std::size_t at) {
    return folded(read64(in) ^ read64(kSecret + at), read64(in + 8) ^ read64(kSecret + at + 8));
  }
};

Uint128 hash_17_to_128(const std::uint8_t* in, std::size_t size) {
  Sums sums{size * kPrime64_1, 0};
  for (std::size_t i = (size - 1) / 32 + 1; i-- > 0;) {
    sums.mix(in + 16 * i, in + size - 16 * i - 16, 32 * i);
  }
  return sums.hash(size);
}

Uint128 hash_129_to_240(const std::uint8_t* in, std::size_t size) {
  Sums sums{size * kPrime64_1, 0};
  for (std::size_t i = 0; i < 4; ++i) sums.mix(in + 32 * i, in + 32 * i + 16, 32 * i);
  sums = {avalanche(sums.first), avalanche(sums.second)};
  for (std::size_t i = 4; i < size / 32; ++i) {
    sums.mix(in + 32 * i, in + 32 * i + 16, 32 * (i - 4) + 3);
  }
  sums.mix(in + size - 16, in + size - 32, 103);
  return sums.hash(size);
}

void accumulate(std::uint64_t* lanes, const std::uint8_t* in, const std::uint8_t* secret,
                std::size_t stripes) {
  for (; stripes-- > 0; in += kStripe, secret += 8) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t value = read64(in + 8 * i), keyed = value ^ read64(secret + 8 * i);
      lanes[i ^ 1] += value;
      lanes[i] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
    }
  }
}

void accumulate_blocks(std::uint64_t* lanes, const std::uint8_t* in, std::size_t blocks) {
  for (; blocks-- > 0; in += kStripes * kStripe) {
    accumulate(lanes, in, kSecret, kStripes);
    for (std::size_t i = 0; i < kLanes; ++i) {
      lanes[i] ^= lanes[i] >> 47 ^ read64(kSecret + kSecretBytes - kStripe + 8 * i);
      lanes[i] *= xxh3::kScramble;
    }
  }
}

constexpr xxh3::Kernels kPortable{accumulate, accumulate_blocks};

const xxh3::Kernels& kernels([[maybe_unused]] Level level) {
#if defined(__x86_64__)
  if (level != Level::kScalar) return xxh3::kKernelsAvx2;
#endif
  return kPortable;
}

std::uint64_t merged(const std::uint64_t* lanes, std::uint64_t result, std::size_t at) {
  for (std::size_t i = 0; i < kLanes; i += 2, at += 16) {
    result += folded(lanes[i] ^ read64(kSecret + at), lanes[i + 1] ^ read64(kSecret + at + 8));
  }
  return avalanche(result);
}

Uint128 hash_long(const std::uint8_t* in, std::size_t size, Level level) {
  std::uint64_t lanes[kLanes] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                 kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  const xxh3::Kernels& use = kernels(level);
  const std::size_t blocks = (size - 1) / (kStripes * kStripe);  // the last one, if full, is not
  use.accumulate_blocks(lanes, in, blocks);
  const std::size_t begin = blocks * kStripes * kStripe;
  use.accumulate(lanes, in + begin, kSecret, (size - begin - 1) / kStripe);
  use.accumulate(lanes, in + size - kStripe, kSecret + kSecretBytes - kStripe - 7, 1);
  return {merged(lanes, ~(size * kPrime64_2), kSecretBytes - kStripe - 11),
          merged(lanes, size * kPrime64_1, 11)};
}

}  // namespace

Uint128 xxh3_128(std::span<const std::uint8_t> data, Level level) {
  const std::uint8_t* const in = data.data();
  const std::size_t size = data.size();
  if (size == 0) return hash_0();
  if (size <= 3) return hash_1_to_3(in, size);
  if (size <= 8) return hash_4_to_8(in, size);
  if (size <= 16) return hash_9_to_16(in, size);
  if (size <= 128) return hash_17_to_128(in, size);
  if (size <= 240) return hash_129_to_240(in, size);
  return hash_long(in, size, level);
}

}  // namespace tokpack
