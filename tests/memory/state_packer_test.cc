// The reference's page counts from its sizes, a map for every kind of breach that check_packing
// must refuse by name, and random sizes against that check.
#include "memory/state_packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "base/int_math.h"
#include "tests/memory/reference_sizes.h"

namespace flashlane::memory {
namespace {

using flashlane::testing::Head;
using flashlane::testing::kLogitsBytes;
using flashlane::testing::kStreamsBytes;
using flashlane::testing::page_bytes;
using flashlane::testing::reference_sizes;
using flashlane::testing::to_mib;

using Sizes = std::vector<size_t>;

Packing packed(const Sizes& sizes, size_t bytes) {
  Result<Packing> packing = pack_pieces(sizes, bytes);
  EXPECT_TRUE(packing.ok()) << (packing ? "" : packing.error().message);
  const Status checked = check_packing(*packing, sizes, bytes);
  EXPECT_TRUE(checked.ok()) << (checked ? "" : checked.error().message);
  return *packing;
}

std::string breach(const Packing& packing, const Sizes& sizes, size_t bytes) {
  const Status checked = check_packing(packing, sizes, bytes);
  return checked.ok() ? "" : checked.error().message;
}

bool begins(const std::string& text, const std::string& words) {
  return text.starts_with(words);
}

TEST(StatePacker, TheTrueShapeTakesTheReferencesPages) {
  struct Row {
    Head head;
    size_t pieces;
    double mib;
    int pages;
    double padding_mib;
    int run_pages;
    int wide_run_pages;  // with the two buffers wider than a page
  };
  const Row rows[] = {{Head::kNone, 73, 110.285, 18, 14.59, 16, 23},
                      {Head::kWithoutLogs, 186, 257.49, 37, 20.59, 35, 41},
                      {Head::kWithLogs, 223, 312.23, 45, 25.97, 42, 48}};
  for (const Row& row : rows) {
    Sizes sizes = reference_sizes(row.head);
    const size_t page = page_bytes(256, row.head != Head::kNone);
    const Packing packing = packed(sizes, page);
    EXPECT_EQ(sizes.size(), row.pieces);
    EXPECT_EQ(packing.places.size(), row.pieces);
    EXPECT_NEAR(to_mib(packing.piece_bytes), row.mib, 0.006);
    EXPECT_EQ(packing.pages, row.pages) << row.pieces << " pieces";
    const size_t state_bytes = static_cast<size_t>(packing.pages) * page;
    EXPECT_NEAR(to_mib(state_bytes - packing.piece_bytes), row.padding_mib, 0.006);
    EXPECT_EQ(lay_run(sizes, page).pages, row.run_pages);
    sizes.push_back(kStreamsBytes);
    sizes.push_back(kLogitsBytes);
    EXPECT_EQ(lay_run(sizes, page).pages, row.wide_run_pages);
    EXPECT_FALSE(pack_pieces(sizes, page).ok());
  }
}

TEST(StatePacker, HalvedStatesReachTheVolumesBound) {
  const size_t page = page_bytes(256, true);
  EXPECT_EQ(packed(reference_sizes(Head::kWithLogs, 2), page).pages, 42);
  EXPECT_EQ(packed(reference_sizes(Head::kWithLogs, 3), page).pages, 44);
  for (const size_t parts : {4, 6, 12, 48}) {
    EXPECT_EQ(packed(reference_sizes(Head::kWithLogs, parts), page).pages, 42) << parts;
  }
}

TEST(StatePacker, TheLargestGoesFirstAndOfEqualsTheEarlier) {
  // Pages of 1,024: 600 with one 250 behind it, 512 twice, and no room for the other 250.
  const Packing packing = packed({250, 512, 600, 250, 512}, 1024);
  const std::vector<PiecePlace> places = {{0, 768}, {1, 0}, {0, 0}, {2, 0}, {1, 512}};
  EXPECT_EQ(packing.places, places);
  EXPECT_EQ(packing.pages, 3);
  EXPECT_EQ(packing.piece_bytes, size_t{2124});
  // Sixty of one size stand in their own order, which a sort that is not stable would lose.
  const Packing equal = packed(Sizes(60, 256), 1024);
  for (size_t piece = 0; piece < 60; ++piece) {
    EXPECT_EQ(equal.places[piece],
              (PiecePlace{.page = static_cast<int>(piece / 4), .offset = piece % 4 * 256}));
  }
}

TEST(StatePacker, ThePageIsFilledToItsLastByte) {
  EXPECT_EQ(packed({768, 257}, 1025).pages, 1);
  EXPECT_EQ(packed({768, 257}, 1024).pages, 2);
  EXPECT_EQ(packed({769, 1}, 1024).pages, 2) << "what begins anew begins aligned";
  EXPECT_EQ(packed({1024}, 1024).pages, 1);
  EXPECT_EQ(packed({}, 1024).pages, 0);
}

TEST(StatePacker, APieceWiderThanAPageIsRefusedByName) {
  const Result<Packing> refused = pack_pieces(Sizes{512, 1025, 2048}, 1024);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "piece over page: piece 1 takes 1025 bytes, a page has 1024");
}

TEST(StatePacker, SizesThatOverflowAreRefused) {
  constexpr size_t kMost = std::numeric_limits<size_t>::max();
  EXPECT_FALSE(pack_pieces(Sizes{kMost, 1}, kMost).ok());
  EXPECT_EQ(packed({kMost}, kMost).pages, 1);
  EXPECT_EQ(packed({kMost - 100, 50}, kMost).pages, 2) << "no start lies behind the first";
}

TEST(StatePacker, OneMapForOneListOfSizes) {
  const Sizes sizes = reference_sizes(Head::kWithLogs);
  const size_t page = page_bytes(256, true);
  const Packing first = packed(sizes, page);
  EXPECT_EQ(first, packed(sizes, page));
  EXPECT_EQ(packing_hash(first), packing_hash(packed(sizes, page)));
  // Known once and for all: another machine's, or another build's, must be this one.
  EXPECT_EQ(packing_hash(first), uint64_t{1886997838247599592});

  EXPECT_NE(packing_hash(first), packing_hash(packed(sizes, page_bytes(260, true))));
  EXPECT_NE(packing_hash(first), packing_hash(lay_run(sizes, page)));
  Packing changed = first;
  std::swap(changed.places[0], changed.places[1]);
  EXPECT_NE(packing_hash(first), packing_hash(changed));
  changed = first;
  changed.places.back().offset += kPieceAlignment;
  EXPECT_NE(packing_hash(first), packing_hash(changed));
  changed = first;
  ++changed.pages;
  EXPECT_NE(packing_hash(first), packing_hash(changed));
  changed = first;
  ++changed.piece_bytes;
  EXPECT_NE(packing_hash(first), packing_hash(changed));
}

TEST(StatePacker, ARunCrossesTheBordersOfPages) {
  const Packing run = lay_run(Sizes{1000, 500, 3000, 10}, 1024);
  const std::vector<PiecePlace> places = {{0, 0}, {1, 0}, {1, 512}, {4, 512}};
  EXPECT_EQ(run.places, places);
  EXPECT_EQ(run.pages, 5);
  EXPECT_EQ(run.piece_bytes, size_t{4510});
  // Aligned from the run's start, which a page of another width does not hide.
  const Packing odd = lay_run(Sizes{100, 100, 100}, 320);
  const std::vector<PiecePlace> odd_places = {{0, 0}, {0, 256}, {1, 192}};
  EXPECT_EQ(odd.places, odd_places);
  EXPECT_EQ(odd.pages, 2);
  EXPECT_EQ(lay_run(Sizes{}, 320).pages, 0);
  EXPECT_EQ(lay_run(Sizes{1024, 1024}, 1024).pages, 2);
}

class CheckPacking : public ::testing::Test {
 protected:
  // 0 and 1 on the first page, 2 and 3 on the second.
  const Sizes sizes_ = {512, 500, 700, 200};
  const Packing good_ = {
      .places = {{0, 0}, {0, 512}, {1, 0}, {1, 768}}, .pages = 2, .piece_bytes = 1912};
  std::string after(size_t piece, PiecePlace place) const {
    Packing packing = good_;
    packing.places[piece] = place;
    return breach(packing, sizes_, 1024);
  }
};

TEST_F(CheckPacking, AcceptsMapsThatThePackerDidNotMake) {
  EXPECT_EQ(breach(good_, sizes_, 1024), "");
  EXPECT_EQ(after(0, {0, 0}), "");
  Packing turned = good_;
  for (PiecePlace& place : turned.places) place.page = 1 - place.page;
  EXPECT_EQ(breach(turned, sizes_, 1024), "");
  // A piece that ends with its page.
  EXPECT_EQ(breach({.places = {{0, 768}}, .pages = 1, .piece_bytes = 256}, {256}, 1024), "");
}

TEST_F(CheckPacking, RefusesEveryBreachByName) {
  EXPECT_EQ(after(1, {0, 256}), "overlap: pieces 0 and 1 share bytes of page 0");
  EXPECT_EQ(after(3, {1, 512}), "overlap: pieces 2 and 3 share bytes of page 1");
  EXPECT_EQ(after(3, {1, 0}), "overlap: pieces 2 and 3 share bytes of page 1");
  EXPECT_EQ(after(1, {0, 768}),
            "past page: piece 1 of 500 bytes begins at byte 768 of page 0, which has 1024");
  EXPECT_TRUE(
      begins(after(1, {0, std::numeric_limits<size_t>::max() - 255}), "past page: piece 1"));
  EXPECT_EQ(after(3, {1, 760}), "misaligned: piece 3 begins at byte 760 of page 1");
  EXPECT_EQ(after(2, {2, 0}), "page out of range: piece 2 lies on page 2 of 2");
  EXPECT_EQ(after(2, {-1, 0}), "page out of range: piece 2 lies on page -1 of 2");

  Packing packing = good_;
  packing.places.pop_back();
  EXPECT_EQ(breach(packing, sizes_, 1024), "missing piece: 4 pieces have 3 places");
  packing = good_;
  packing.places.push_back({1, 768});
  EXPECT_EQ(breach(packing, sizes_, 1024), "missing piece: 4 pieces have 5 places");
  packing = good_;
  packing.pages = 3;
  EXPECT_EQ(breach(packing, sizes_, 1024), "empty page: 2 of 3 pages hold a piece");
  packing = good_;
  packing.piece_bytes = 1913;
  EXPECT_EQ(breach(packing, sizes_, 1024),
            "wrong sum: the map says 1913 bytes, the pieces take 1912");
  // Of another page, of other sizes, of another form.
  EXPECT_TRUE(begins(breach(good_, sizes_, 900), "past page: piece 1"));
  EXPECT_TRUE(begins(breach(good_, {513, 500, 700, 200}, 1024), "overlap: pieces 0 and 1"));
  EXPECT_TRUE(
      begins(breach(lay_run(Sizes{512, 700}, 1024), {512, 700}, 1024), "past page: piece 1"));
}

TEST_F(CheckPacking, RefusesTheTrueMapWithOnePieceOnAnother) {
  const Sizes sizes = reference_sizes(Head::kWithLogs);
  const size_t page = page_bytes(256, true);
  const Packing good = packed(sizes, page);
  int refused = 0;
  for (size_t piece = 1; piece < sizes.size(); ++piece) {
    Packing packing = good;
    packing.places[piece] = good.places[piece - 1];
    refused += begins(breach(packing, sizes, page), "overlap: ") ||
                       begins(breach(packing, sizes, page), "past page: ")
                   ? 1
                   : 0;
  }
  EXPECT_EQ(refused, 222);
}

// Up to 80 pieces, many of one size, some as wide as a page; pages of any width.
struct RandomCase {
  explicit RandomCase(uint32_t seed) : random(seed) {
    page = 1 + number(6'000);
    const size_t count = number(81);
    for (size_t i = 0; i < count; ++i) {
      switch (number(5)) {
        case 0:
          sizes.push_back(page);
          break;
        case 1:
          sizes.push_back(page / 3);
          break;
        case 2:
          sizes.push_back(std::min<size_t>(page, 256 * number(8)));
          break;
        default:
          sizes.push_back(number(page + 1));
          break;
      }
    }
  }
  size_t number(size_t below) { return random() % below; }
  std::mt19937 random;
  size_t page = 0;
  Sizes sizes;
};

// By its definition, byte by byte.
bool disjoint(const Packing& packing, const Sizes& sizes, size_t page) {
  std::vector<bool> taken(static_cast<size_t>(packing.pages) * page);
  for (size_t piece = 0; piece < sizes.size(); ++piece) {
    const PiecePlace& place = packing.places[piece];
    for (size_t byte = 0; byte < sizes[piece]; ++byte) {
      if (place.offset + byte >= page) return false;
      const size_t at = static_cast<size_t>(place.page) * page + place.offset + byte;
      if (taken[at]) return false;
      taken[at] = true;
    }
  }
  return true;
}

bool every_page_was_needed(const Packing& packing, const Sizes& sizes, size_t page) {
  std::vector<size_t> end(static_cast<size_t>(packing.pages));
  for (size_t piece = 0; piece < sizes.size(); ++piece) {
    size_t& last = end[static_cast<size_t>(packing.places[piece].page)];
    last = std::max(last, packing.places[piece].offset + sizes[piece]);
  }
  for (size_t piece = 0; piece < sizes.size(); ++piece) {
    for (int earlier = 0; earlier < packing.places[piece].page; ++earlier) {
      const size_t start = round_up(end[static_cast<size_t>(earlier)], kPieceAlignment);
      if (start + sizes[piece] <= page) return false;
    }
  }
  return true;
}

TEST(RandomPackings, PassTheCheckAndTheDefinition) {
  size_t pieces = 0;
  for (uint32_t seed = 0; seed < 500; ++seed) {
    const RandomCase test(seed);
    const Packing packing = packed(test.sizes, test.page);
    EXPECT_TRUE(disjoint(packing, test.sizes, test.page)) << "seed " << seed;
    // First fit: no piece of a page could have stood behind all that an earlier page holds.
    EXPECT_TRUE(every_page_was_needed(packing, test.sizes, test.page)) << "seed " << seed;
    pieces += test.sizes.size();
  }
  EXPECT_GT(pieces, size_t{15'000});
}

TEST(RandomPackings, ADamagedMapIsRefusedExactlyWhenItsBytesCollide) {
  int collisions = 0;
  int harmless = 0;
  for (uint32_t seed = 0; seed < 2'000; ++seed) {
    RandomCase test(seed);
    if (test.sizes.empty()) continue;
    Packing packing = packed(test.sizes, test.page);
    PiecePlace& place = packing.places[test.number(test.sizes.size())];
    place.page = static_cast<int>(test.number(static_cast<size_t>(packing.pages)));
    place.offset = test.number(test.page) / kPieceAlignment * kPieceAlignment;
    const std::string found = breach(packing, test.sizes, test.page);
    const bool collides = !disjoint(packing, test.sizes, test.page);
    EXPECT_EQ(begins(found, "overlap") || begins(found, "past page"), collides)
        << "seed " << seed << ": " << found;
    ++(collides ? collisions : harmless);
  }
  EXPECT_GT(collisions, 500);
  EXPECT_GT(harmless, 100);
}

}  // namespace
}  // namespace flashlane::memory
