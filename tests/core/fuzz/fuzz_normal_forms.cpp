// Normal forms: valid UTF-8 comes out, the same once more, and the quick check never errs.
#include "core/text/normal_forms.hpp"
#include "core/text/utf8.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack;
  using namespace tokpack::test;
  const Exact copy(repaired(data, size));
  const std::string_view text = as_text(copy.span().data(), size);
  for (const NormalForm form :
       {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc, NormalForm::kNfkd}) {
    std::string once, twice;
    normalize(form, text, once);
    normalize(form, once, twice);
    MUST(once == twice);
    MUST(!is_normal_quick(form, text) || once == text);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(once.data());
    MUST(utf8_check(Level::kScalar)(bytes, once.size()));
  }
  return 0;
}
