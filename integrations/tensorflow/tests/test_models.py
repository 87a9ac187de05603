import jax, numpy as np, pytest, tensorflow as tf, ntkdiag
import networks
def relative(a,b): return np.abs(np.asarray(a)-b).max()/np.abs(b).max()
@pytest.mark.parametrize("name", networks.CASES)
def test_kernel(name):
    case = networks.CASES[name]()
    fn = ntkdiag.functionalize(case.model, **case.options)
    print(fn)
    assert set(fn.params)==set(case.trained)
    assert set(fn.fixed)==case.fixed
    expected = case.call(case.x).numpy()
    np.testing.assert_allclose(fn(fn.params, case.x), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(fn.apply)(fn.params, tf.constant(case.x[:2]).numpy()), expected[:2], rtol=1e-5, atol=1e-6)
    kernel = ntkdiag.ntk(*fn, case.x, case.x[:2], reduction="full")
    r=relative(kernel.array.transpose(0,1,2,3), np.einsum("ncmd->nmcd" if kernel.array.shape[1]==2 and False else "ncmd->ncmd", networks.kernel_by_tape(case.call, list(case.trained.values()), case.x, case.x[:2])))
    print(name, r)
    assert r<1e-5
