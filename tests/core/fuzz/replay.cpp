// main() of a fuzz target where there is no libFuzzer: each file, or each file of a folder, once.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz.hpp"

namespace {

namespace fs = std::filesystem;

void replay(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int count, char** names) {
  std::size_t inputs = 0;
  LLVMFuzzerTestOneInput(nullptr, 0);
  for (int i = 1; i < count; ++i) {
    const fs::path path = names[i];
    if (!fs::is_directory(path)) {
      replay(path);
      ++inputs;
      continue;
    }
    for (const auto& entry : fs::directory_iterator(path)) {
      replay(entry.path());
      ++inputs;
    }
  }
  std::printf("%zu inputs\n", inputs);
  return inputs == 0;  // a corpus that is not found must not pass
}
