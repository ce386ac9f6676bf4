// kernels KERNEL LEVEL ROUNDS FILE: runs one kernel at one level over a text, again and again, for
// something that counts instructions to look at. Prints how many bytes one round has.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#include "bpe_twin.hpp"
#include "core/bpe/bpe_encoder.hpp"
#include "core/bpe/bpe_kernel.hpp"
#include "core/json/json_lines.hpp"
#include "core/pretokenize/scan.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

using Round = std::function<void()>;

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

Round check_utf8(const std::string& text, Level level) {
  return [&text, check = utf8_check(level)] {
    if (!check(bytes_of(text).data(), text.size())) throw std::runtime_error("not UTF-8");
  };
}

// The text as JSON lines of some 2000 bytes.
std::string as_json(const std::string& text) {
  std::string json = "{\"text\": \"";
  std::size_t begin = 0;
  for (const char c : text) {
    if (c == '\n' && json.size() - begin > 2000) {
      json += "\"}\n";
      begin = json.size();
      json += "{\"text\": \"";
    } else if (c == '\n') {
      json += "\\n";
    } else {
      if (c == '"' || c == '\\') json += '\\';
      json += c;
    }
  }
  return json + "\"}\n";
}

Round extract_json(const std::string& text, Level level) {
  return [json = as_json(text), lines = JsonLines("text", level)] {
    Buffer<std::uint8_t> out;
    Buffer<std::int64_t> spans, numbers, slow, values;
    lines.extract(bytes_of(json), {out, spans, numbers, slow, values});
    if (slow.size() != 0) throw std::runtime_error("a slow record");
  };
}

Round scan(const std::string& name, const std::string& text, Level level) {
  const auto pattern = std::make_shared<const Pretokenizer>(name);
  const auto cutter = std::make_shared<Cutter>(pattern->steps, pattern->rules, level);
  return [&text, pattern, cutter] {
    std::uint32_t starts[kMaxWindow];
    cutter->begin(bytes_of(text).data(), text.size());
    while (!cutter->done()) cutter->next(starts);
  };
}
Round scan_gpt2(const std::string& text, Level level) { return scan("gpt2", text, level); }
Round scan_o200k(const std::string& text, Level level) { return scan("o200k", text, level); }

test::Vocabulary vocabulary(const std::string& text) {
  std::mt19937 random(1);
  return test::random_vocabulary(random, std::string_view(text).substr(0, 20000), 0, 4000);
}

// Every pretoken of 2 to 32 bytes as if it were new.
Round merge(const std::string& text, Level level) {
  const auto ends = pretoken_ends(Pretokenizer("gpt2"), Level::kScalar, bytes_of(text));
  const auto model = std::make_shared<const BpeModel>(vocabulary(text).model());
  return [&text, ends, model, &kernel = bpe_kernel(level)] {
    std::uint32_t ids[64];
    std::size_t begin = 0;
    for (const std::int64_t end : ends) {
      const std::size_t size = static_cast<std::size_t>(end) - begin;
      const std::uint8_t* word = bytes_of(text).data() + begin;
      begin += size;
      if (size < 2 || size > 32 || begin + kKeySlack > text.size()) continue;
      size <= kernel.merge32_limit
          ? kernel.merge32(model->merge_table32(), model->first_symbols(), word, size, ids)
          : model->encode(word, size, ids);
    }
  };
}

Round encode(const std::string& text, Level level) {
  const test::Vocabulary v = vocabulary(text);
  const BpeOptions options{Pretokenizer("gpt2"), std::nullopt, false, 1 << 24, level};
  const std::shared_ptr<BpeEncoder> encoder = make_bpe_encoder(
      v.model(), {}, v.words, false, static_cast<std::uint32_t>(v.words.size()), options);
  return [&text, encoder] {
    Buffer<std::uint16_t> ids;
    Buffer<std::int32_t> lengths;
    std::vector<std::int64_t> special;
    const Span whole{0, static_cast<std::int64_t>(text.size())};
    encoder->encode(bytes_of(text), {&whole, 1}, {}, {&ids, &lengths, &special});
  };
}

int run(const std::string& kernel, const char* level_name, int rounds, const char* path) {
  static const std::map<std::string, Round (*)(const std::string&, Level)> kKernels = {
      {"utf8", check_utf8},       {"json", extract_json}, {"scan gpt2", scan_gpt2},
      {"scan o200k", scan_o200k}, {"merge", merge},       {"encode", encode}};
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const Round round = kKernels.at(kernel)(text, level_by_name(level_name).value());
  for (int i = 0; i < rounds; ++i) round();
  std::printf("%zu\n", text.size());
  return 0;
}

}  // namespace
}  // namespace tokpack

int main(int count, char** words) {
  if (count != 5) return 2;
  return tokpack::run(words[1], words[2], std::atoi(words[3]), words[4]);
}
