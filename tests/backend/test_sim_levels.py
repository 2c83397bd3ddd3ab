"""Matrix products of `sim` in the code of machines with narrower vectors than this one's."""

import subprocess
from pathlib import Path

import pytest

SIM = Path(__file__).parent.parent.parent / "backend/vendors/sim"

PROGRAM = """
#include <cmath>
#include <cstdio>

#include "gemm.h"

using namespace ral::sim;

// Against the sum that defines the product, for sizes around those of tiles and blocks.
int main() {
  const Index sizes[] = {1, 5, 6, 7, 16, 17, 32, 33, 200, 520};
  for (const Index m : sizes) {
    for (const Index n : sizes) {
      const Index k = (m * 7 + n * 3) % 300 + 1;
      std::vector<float> a(m * k), b(k * n), c(m * n, 1.0f);
      for (Index i = 0; i < m * k; ++i) a[i] = static_cast<float>(i * 37 % 17) - 8;
      for (Index i = 0; i < k * n; ++i) b[i] = static_cast<float>(i * 53 % 13) - 6;
      multiply(m, n, k, 2.0f, {a.data(), RAL_FLOAT32, k, 1}, {b.data(), RAL_FLOAT32, 1, k}, {c.data(), n, 1, false});
      for (Index i = 0; i < m; ++i) {
        for (Index j = 0; j < n; ++j) {
          float sum = 0;  // of whole numbers, so that no order of adding changes it
          for (Index x = 0; x < k; ++x) sum += a[i * k + x] * b[j * k + x];
          if (c[i * n + j] != 1.0f + 2.0f * sum) return std::printf("%ld x %ld x %ld\\n", m, n, k), 1;
        }
      }
    }
  }
}
"""


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_products_on_narrower_machines(level: str, tmp_path: Path) -> None:
    (tmp_path / "products.cpp").write_text(PROGRAM)
    flags = [
        "-std=c++17",
        "-O2",
        "-DRAL_ONE_LEVEL",
        f"-march={level}",
        f"-I{SIM}",
        f"-I{SIM.parent.parent}/include",
    ]
    sources = [tmp_path / "products.cpp", SIM / "gemm.cpp", SIM / "element.cpp"]
    built = subprocess.run(
        ["c++", *flags, *map(str, sources), "-o", str(tmp_path / "products")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([tmp_path / "products"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
