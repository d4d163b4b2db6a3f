"""Complex numbers: gradients are conjugate Wirtinger derivatives, as torch defines them."""

import torch
from torch.autograd import Function

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, imaginary, real


class ComplexMultiply(Function):
    """`a * b`, holomorphic: the other factor is conjugated in backward."""

    @staticmethod
    def forward(ctx, a, b):
        if a.shape != b.shape:
            raise ValueError(f"a and b must have one shape, got {a.shape} and {b.shape}")
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a = grad_output * b.conj() if ctx.needs_input_grad[0] else None
        grad_b = grad_output * a.conj() if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class ComplexExp(pb.Function):
    """`exp(z)`, from its output."""

    @staticmethod
    def forward(ctx, z):
        y = z.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y.conj()


class Conjugate(Function):
    """The conjugate, not holomorphic; `resolve_conj` so that no lazy view leaves."""

    @staticmethod
    def forward(ctx, z):
        return z.conj().resolve_conj()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.conj()


class SquaredSize(Function):
    """`|z|^2`, from complex to real."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.real * z.real + z.imag * z.imag

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        return 2 * grad_output * z


class Size(Function):
    """`|z|`, with gradient 0 at 0."""

    @staticmethod
    def forward(ctx, z):
        y = z.abs()
        ctx.save_for_backward(z, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        z, y = ctx.saved_tensors
        return grad_output * (z / y).masked_fill(y == 0, 0)


class RealPart(Function):
    """The real part, as a copy."""

    @staticmethod
    def forward(ctx, z):
        return z.real.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return torch.complex(grad_output, torch.zeros_like(grad_output))


class FromParts(Function):
    """A complex tensor from its real and imaginary part."""

    @staticmethod
    def forward(ctx, x, y):
        return torch.complex(x, y)

    @staticmethod
    def backward(ctx, grad_output):
        grad_x = grad_output.real.clone() if ctx.needs_input_grad[0] else None
        grad_y = grad_output.imag.clone() if ctx.needs_input_grad[1] else None
        return grad_x, grad_y


class OnCircle(Function):
    """`exp(i angle)`, from real to complex."""

    @staticmethod
    def forward(ctx, angle):
        y = torch.complex(angle.cos(), angle.sin())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        # The real part of conj(dy/dangle) g, with dy/dangle = i y.
        return y.real * grad_output.imag - y.imag * grad_output.real


class MixedScale(Function):
    """Complex `z` times real `x`: the gradient of `x` is real."""

    @staticmethod
    def forward(ctx, z, x):
        if z.shape != x.shape:
            raise ValueError(f"z and x must have one shape, got {z.shape} and {x.shape}")
        ctx.save_for_backward(z, x)
        return z * x

    @staticmethod
    def backward(ctx, grad_output):
        z, x = ctx.saved_tensors
        grad_z = grad_output * x if ctx.needs_input_grad[0] else None
        grad_x = (grad_output * z.conj()).real if ctx.needs_input_grad[1] else None
        return grad_z, grad_x


class ComplexMatMul(Function):
    """The product of complex matrices, with adjoints in backward."""

    @staticmethod
    def forward(ctx, a, b):
        if a.dim() != 2 or b.dim() != 2:
            raise ValueError(f"takes two matrices, got shapes {a.shape} and {b.shape}")
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a = grad_output @ b.mH if ctx.needs_input_grad[0] else None
        grad_b = a.mH @ grad_output if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class FFT(Function):
    """The discrete Fourier transform of each row; backward is the inverse without its 1/n."""

    @staticmethod
    def forward(ctx, z):
        return torch.fft.fft(z)

    @staticmethod
    def backward(ctx, grad_output):
        return torch.fft.ifft(grad_output, norm="forward")


class RealFFT(Function):
    """`rfft` of real rows of any length: half of the frequencies stand for two each."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError(f"rows must not be empty, got x of shape {tuple(x.shape)}")
        ctx.length = x.shape[-1]
        return torch.fft.rfft(x)

    @staticmethod
    def backward(ctx, grad_output):
        missing = ctx.length - grad_output.shape[-1]
        full = torch.nn.functional.pad(grad_output, (0, missing))
        return torch.fft.ifft(full, norm="forward").real


class CircularConvolution(Function):
    """The circular convolution of rows through the Fourier transform."""

    @staticmethod
    def forward(ctx, x, kernel):
        if x.dim() == 0 or not x.shape[-1] or kernel.shape != x.shape[-1:]:
            raise ValueError(f"kernel must have the size of x's rows, got {x.shape}")
        ctx.save_for_backward(x, kernel)
        return torch.fft.ifft(torch.fft.fft(x) * torch.fft.fft(kernel)).real

    @staticmethod
    def backward(ctx, grad_output):
        x, kernel = ctx.saved_tensors
        g = torch.fft.fft(grad_output)
        grad_x = grad_kernel = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.fft.ifft(g * torch.fft.fft(kernel).conj()).real
        if ctx.needs_input_grad[1]:
            each = torch.fft.ifft(g * torch.fft.fft(x).conj()).real
            grad_kernel = each.sum_to_size(kernel.shape)
        return grad_x, grad_kernel


def _circular(x, kernel):
    return torch.fft.ifft(torch.fft.fft(x) * torch.fft.fft(kernel)).real


SOUND = {
    "complex-multiply": Sound(
        ComplexMultiply, lambda: (imaginary(4, 5), imaginary(4, 5, seed=1)), torch.mul
    ),
    "complex-exp": Sound(ComplexExp, lambda: (imaginary(4, 5),), torch.exp),
    "conjugate": Sound(Conjugate, lambda: (imaginary(4, 5),), lambda z: z.conj()),
    "squared-size": Sound(SquaredSize, lambda: (imaginary(4, 5),), lambda z: (z * z.conj()).real),
    "size": Sound(Size, lambda: (imaginary(4, 5),), torch.abs),
    "real-part": Sound(RealPart, lambda: (imaginary(4, 5),), torch.real),
    "from-parts": Sound(
        FromParts, lambda: (real(4, 5), real(4, 5, seed=1)), torch.complex, low=False
    ),
    "on-circle": Sound(
        OnCircle, lambda: (real(4, 5),), lambda a: torch.polar(torch.ones_like(a), a), low=False
    ),
    "complex-by-real": Sound(MixedScale, lambda: (imaginary(4, 5), real(4, 5, seed=1)), torch.mul),
    "complex-matmul": Sound(
        ComplexMatMul, lambda: (imaginary(3, 4), imaginary(4, 5, seed=1)), torch.mm
    ),
    "fft": Sound(FFT, lambda: (imaginary(3, 6),), torch.fft.fft),
    "real-fft": Sound(RealFFT, lambda: (real(3, 7),), torch.fft.rfft, low=False),
    "circular-convolution": Sound(
        CircularConvolution, lambda: (real(3, 6), real(6, seed=1)), _circular, low=False
    ),
}

CASES = cases_of(SOUND)
