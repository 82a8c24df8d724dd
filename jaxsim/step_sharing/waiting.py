r"""The wait of those who find all slots taken.

At depth $x = \ln(P(\text{wait})/P(\text{wait} > t))$ the wait is $t = x\,\varphi(x)\,E[Y]/(1 - \rho)$ with Y the time
of a full engine that one request takes. A two-moment law has the constant $\varphi = (c_a^2 + c_Y^2)/2$, the
heavy-traffic limit, and overestimates short waits: over a wait that is short against a service, departures of many
slots look Poisson whatever the law of K. Their index of dispersion over a wait is that of the renewal process of K,

$$I(s) = \frac{1 + F(s)}{1 - F(s)} - \frac2s, \qquad F(s) = E\,e^{-s K/E[K]}, \qquad I(0) = c_K^2,\ I(\infty) = 1,$$

at $1/s$ = the number of full batches' service times that the busy period of depth x covers. What requests weigh per
step is not smoothed: $\varphi = (c_a^2 + I(s))/2 + (c_Y^2 - c_K^2)/2$, kept above half the heavy-traffic value.

Behind a dispatcher that joins the shortest queue, G engines share their slots but not their queues. With a wait of
scale $\theta$ in one shared queue, the number q queued in all engines is geometric with ratio
$\sigma = 1 - E[Y]/(G\theta)$. Engines are kept level by the dispatcher but for holes: of $q = l G + r$ each engine has
l queued and r have one more; a departure from one that has not makes a hole that the next arrival fills, so that an
arrival finds none with probability $(r + 1)/G$ and has l + 1 departures of its own engine to wait for, else l. Those
come at mean distance E[Y]. Hence of the arrivals to full slots a share $\theta/\theta_G$ queues at all, for an
exponential time of mean $\theta_G = E[Y]/(1 - \sigma^G)$: the mean wait is that of the shared queue, its tail longer.
One engine: $\theta_1 = \theta$.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsim.step_sharing.moments import Moments

Scalar = Float[Array, ""]

DEPTHS = (0.2, 1.0, 2.0, 3.5, 6.0, 9.0)
"""Depths at which the scale of a wait is computed; between them it is linear in the wait."""

_UNIT = DEPTHS.index(1.0)

_LAGUERRE_X, _LAGUERRE_W = np.polynomial.laguerre.laggauss(6)
_LEAST_S = 1e-3
_FLOOR = 0.5


def dispersion_over(moments: Moments, s: Scalar) -> Scalar:
    """I(s), the index of dispersion of a renewal process of K over 1/s mean lives; c_K^2 at 0, 1 at infinity."""
    s = jnp.maximum(s, _LEAST_S)
    f = moments.laplace(s)
    return (1.0 + f) / (1.0 - f) - 2.0 / s


class WaitScale(eqx.Module):
    """What the scale of a queue wait depends on.

    Attributes:
        moments: of the requests.
        slots: of all engines of the pool.
        engines: behind a dispatcher to the shortest queue, >= 1.
        slack: 1 - utilisation, > 0.
        slot_s, slot_cv2: mean and squared coefficient of variation of Y, for one engine (`full.slot_time`).
        dispersion: index of dispersion of the arrivals.
    """

    moments: Moments
    slots: Scalar
    engines: Scalar
    slack: Scalar
    slot_s: Scalar
    slot_cv2: Scalar
    dispersion: Scalar

    def variability(self, depth: Scalar) -> Scalar:
        """phi of the module's formula."""
        heavy = (self.dispersion + self.slot_cv2) / 2.0
        lives = depth * heavy / (self.slack**2 * self.slots)
        smoothed = dispersion_over(self.moments, 1.0 / lives)
        value = (self.dispersion + smoothed + self.slot_cv2 - self.moments.steps_cv2) / 2.0
        floor = _FLOOR * heavy
        return floor + 0.25 * floor * jax.nn.softplus(4.0 * (value / floor - 1.0))

    def pooled_s(self, depth: Scalar) -> Scalar:
        """Seconds per unit of depth in one queue that all engines share."""
        return self.variability(depth) * self.slot_s / (self.slack * self.engines)

    def apart(self, pooled_s: Array) -> Array:
        """Seconds per unit of depth at the pool's engines, from those in one queue that all share."""
        engines = jnp.maximum(self.engines, 1.0)
        ratio = 1.0 - self.slot_s / (engines * jnp.maximum(pooled_s, 1e-30))
        sigma = jnp.maximum(ratio, 1e-6)
        shared = self.slot_s / -jnp.expm1(engines * jnp.log(sigma))
        return jnp.where(self.engines > 1.0, shared, pooled_s)


class QueueWait(eqx.Module):
    """Law of the queue wait: a share of those who find full slots queues, for longer than t with exp(-t/scale(t)).

    Attributes:
        share: of the arrivals to full slots, those that queue; the others fill a hole.
        waits_s, scales_s: the scale at some waits.
        scale: what it depends on.
    """

    share: Scalar
    waits_s: Float[Array, " depths"]
    scales_s: Float[Array, " depths"]
    scale: WaitScale

    @classmethod
    def of(cls, scale: WaitScale) -> QueueWait:
        """The law tabulated at `DEPTHS`, its share at unit depth."""
        depths = jnp.asarray(DEPTHS)
        pooled = jax.vmap(scale.pooled_s)(depths)
        scales = scale.apart(pooled)
        return cls(jnp.minimum(pooled[_UNIT] / scales[_UNIT], 1.0), depths * scales, scales, scale)

    def scale_s(self, t: Float[Array, "*times"]) -> Float[Array, "*times"]:
        """The scale at waits t: linear between the tabulated ones, constant outside them."""
        slopes = jnp.diff(self.scales_s) / jnp.diff(self.waits_s)
        bends = jnp.concatenate([slopes, jnp.zeros(1)]) - jnp.concatenate([jnp.zeros(1), slopes])
        past = jax.nn.relu(t[..., None] - self.waits_s.reshape((1,) * t.ndim + (-1,)))
        return self.scales_s[0] + (past * bends.reshape((1,) * t.ndim + (-1,))).sum(-1)

    def tail(self, t: Float[Array, "*times"]) -> Float[Array, "*times"]:
        """P(wait > t), t >= 0."""
        return jnp.exp(-t / self.scale_s(t))

    @property
    def mean_s(self) -> Scalar:
        """Mean wait of those who queue, by Gauss-Laguerre quadrature over depth."""
        scales = self.scale.apart(jax.vmap(self.scale.pooled_s)(jnp.asarray(_LAGUERRE_X)))
        return (jnp.asarray(_LAGUERRE_W * _LAGUERRE_X) * scales).sum()
