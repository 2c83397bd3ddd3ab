import pytest

from ral_trace.analysis.kernel_names import family

KERNELS = [
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
        "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
        "at::native::vectorized_elementwise_kernel",
    ),
    (
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>(at::Tensor)",
        "at::native::(anonymous namespace)::indexSelectLargeIndex",
    ),
    ("void (anonymous namespace)::softmax_warp_forward<float>(float*)", "(anonymous namespace)::softmax_warp_forward"),
    (
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::(anonymous "
        "namespace)::X>(at::TensorIteratorBase&, X const&)::{lambda(int)#1}>(int, f(A&)::{lambda(int)#1})",
        "at::native::elementwise_kernel",
    ),
    ("ns::foo(int)::{lambda(int)#1}::operator()(int) const", "ns::foo::{lambda}::operator()"),
    ("bool ns::A::operator< <int>(ns::A const&) const", "ns::A::operator<"),
    ("ns::operator<<(std::ostream&, int)", "ns::operator<<"),
    ("A::operator->() const", "A::operator->"),
    ("S::operator bool() const", "S::operator bool"),
    ("std::enable_if<(1<2), int>::type ns::f<((3)>(2))>(int)", "ns::f"),
    ("auto f<&S::operator-> >()", "f"),
    ("unsigned int f<1>()", "f"),
    ("void foo<4, at::na", "foo"),
    ("vecadd(float*) [clone .kd]", "vecadd"),
    ("Cijk_Ailk_Bljk.kd", "Cijk_Ailk_Bljk"),
    ("triton_poi_fused_add_mul_12", "triton_poi_fused_add_mul"),
    ("triton_per_fused_softmax_0d1d2de", "triton_per_fused_softmax"),
    ("_attn_fwd_0d1d2d3de", "_attn_fwd"),
]
OTHERS = [
    "ampere_sgemm_128x64_tn", "mm-Exec", "Memcpy HtoD (Pageable -> Device)", "CUDA graph 3", "a > b", "a < b", "(x)",
    "<img src=x>", "</script><script>window.__xss=1</script>", "[red]not red[/red]", "operator", "_ZN2at6nativeE", "",
    "triton_", "aten::add_.Tensor", "%{customdata} <b>", "}{",
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), KERNELS)
def test_template_arguments_parameters_and_return_types_are_left_out(name: str, expected: str) -> None:
    assert family(name) == expected


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_signature_stays(name: str) -> None:
    assert family(name) == name


def test_families_are_their_own() -> None:
    assert all(family(expected) == expected for _, expected in KERNELS if "(" not in expected.replace("()", ""))


def test_a_hostile_name_takes_no_longer_than_its_length() -> None:
    assert family("f" + "<(" * 100_000) == "f"
    assert family("f" + "<" * 100_000 + ")" * 100_000) == "f"
    assert family("operator" * 50_000) == "operator" * 50_000
