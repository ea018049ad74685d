"""Physics, optimisation, control and geometry as users write them for one example."""

import math

import torch

from transforms.users.cases import case, definite, floats, integers

GRAVITY = torch.tensor([0.0, -9.81])
HISTORY = []
STEP_SIZES = {0: 0.1, 1: 0.05, 2: 0.01}


@case(floats(4))
def pendulum_rk4(state):
    def rhs(s):
        return torch.cat([s[2:], -torch.sin(s[:2])])

    h = 0.1
    for _ in range(3):
        k1 = rhs(state)
        k2 = rhs(state + h / 2 * k1)
        k3 = rhs(state + h / 2 * k2)
        k4 = rhs(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


@case(floats(2), floats(2))
def projectile(position, velocity):
    time = 0.0
    while position[1] > -2.0 and time < 1.0:  #! vmap
        velocity = velocity + 0.1 * GRAVITY
        position = position + 0.1 * velocity
        time += 0.1
    return position


@case(floats())
def newton_sqrt(a):
    a = a.abs() + 1.0
    x = a
    for _ in range(20):
        new = 0.5 * (x + a / x)
        if abs(new - x) < 1e-6:  #! vmap
            break
        x = new
    return x


@case(floats())
def newton_fixed(a):
    x = a.abs() + 1.0
    for _ in range(6):
        x = 0.5 * (x + (a.abs() + 1.0) / x)
    return x


@case(floats())
def bisection(c):
    low, high = torch.tensor(-3.0), torch.tensor(3.0)
    for _ in range(12):
        middle = (low + high) / 2
        if middle**3 + middle > c:  #! vmap
            high = middle
        else:
            low = middle
    return (low + high) / 2


@case(floats(3))
def gradient_descent(x):
    x = x.clone().requires_grad_(True)  #!
    for _ in range(3):
        loss = (x**4).sum()
        (g,) = torch.autograd.grad(loss, x)  #!
        x = x - 0.1 * g
    return x


@case(floats(3))
def inner_backward(x):
    y = x.detach().clone().requires_grad_()  #!
    loss = (y**2).sum()
    loss.backward()
    return y.grad + x


@case(floats(3))
def force_from_energy(x):
    def energy(q):
        return (q**2).sum() + (q[0] * q[1]) ** 2

    return -torch.func.grad(energy)(x)


@case(floats(3))
def hessian_trace(x):
    return torch.trace(torch.func.hessian(lambda q: (q**4).sum())(x))


@case(floats(3))
def jacobian_old_style(x):
    return torch.autograd.functional.jacobian(torch.sin, x).diagonal()  #!


@case(floats(3))
def divergence(x):
    total = 0.0
    for i in range(3):
        total = total + torch.func.jvp(torch.tanh, (x,), (torch.eye(3)[i],))[1][i]
    return total


@case(definite(3), hessian="same")
def cholesky_with_jitter(a):
    try:
        return torch.linalg.cholesky(a).diagonal().sum()
    except RuntimeError:
        return torch.linalg.cholesky(a + 1e-3 * torch.eye(3)).diagonal().sum()


@case(floats(3, 3))
def maybe_indefinite(a):
    a = a + a.T
    try:
        return torch.linalg.cholesky(a).diagonal().sum()  #!
    except RuntimeError:
        return torch.linalg.eigvalsh(a).sum()


@case(definite(3), floats(3))
def conjugate_gradient(a, b):
    x = torch.zeros_like(b)
    r = b - a @ x
    p = r
    for _ in range(3):
        ap = a @ p
        alpha = (r @ r) / (p @ ap)
        x = x + alpha * p
        new = r - alpha * ap
        p = new + (new @ new) / (r @ r) * p
        r = new
    return x


@case(definite(3), floats(3))
def conjugate_gradient_stops(a, b):
    x = torch.zeros_like(b)
    r = b - a @ x
    p = r
    for _ in range(10):
        if r.norm() < 1e-3:  #! vmap
            break
        ap = a @ p
        alpha = (r @ r) / (p @ ap)
        x = x + alpha * p
        new = r - alpha * ap
        p = new + (new @ new) / (r @ r) * p
        r = new
    return x


@case(definite(3))
def power_iteration(a):
    v = torch.ones(3) / math.sqrt(3)
    for _ in range(8):
        v = a @ v
        v = v / v.norm()
    return v @ a @ v


@case(definite(3), hessian="same")
def largest_eigenvalue(a):
    return torch.linalg.eigvalsh(a)[-1]


@case(definite(3))
def rank_of(a):
    return torch.linalg.matrix_rank(a).float() * a.trace()


@case(floats(4, 3), floats(4))
def least_squares(a, b):
    return torch.linalg.lstsq(a, b[:, None]).solution[:, 0]  #!


@case(floats(4, 3), floats(4))
def normal_equations(a, b):
    return torch.linalg.solve(a.T @ a + 0.1 * torch.eye(3), a.T @ b)


@case(floats(3))
def rotation_matrix(angles):
    c, s = torch.cos(angles[0]), torch.sin(angles[0])
    return torch.tensor([[c, -s], [s, c]])  #!


@case(floats(3))
def rotation_stacked(angles):
    c, s = torch.cos(angles[0]), torch.sin(angles[0])
    return torch.stack([torch.stack([c, -s]), torch.stack([s, c])])


@case(floats(3))
def rotation_filled(angles):
    r = torch.zeros(2, 2)
    r[0, 0] = torch.cos(angles[0])  #! vmap
    r[0, 1] = -torch.sin(angles[0])
    r[1, 0] = torch.sin(angles[0])
    r[1, 1] = torch.cos(angles[0])
    return r


@case(floats(3))
def skew(v):
    m = torch.zeros(3, 3, dtype=v.dtype)
    m[0, 1], m[0, 2], m[1, 2] = -v[2], v[1], -v[0]  #! vmap
    return m - m.T


@case(floats(3))
def axis_angle(v):
    angle = v.norm()
    if angle < 1e-6:  #! vmap
        return torch.eye(3)
    k = v / angle
    z = torch.zeros(())
    kx = torch.stack([z, -k[2], k[1], k[2], z, -k[0], -k[1], k[0], z]).reshape(3, 3)
    return torch.eye(3) + torch.sin(angle) * kx + (1 - torch.cos(angle)) * kx @ kx


@case(floats(4))
def quaternion_normalise(q):
    q = q / q.norm()
    if q[0] < 0:  #! vmap
        q = -q
    return q


@case(floats(2), floats(3, 2))
def nearest_point(x, points):
    d = ((points - x) ** 2).sum(-1)
    return points[d.argmin()]


@case(floats(2), floats(3, 2))
def nearest_point_item(x, points):
    i = ((points - x) ** 2).sum(-1).argmin().item()  #! vmap
    return points[i]


@case(floats(5, 2))
def pairwise_energy(p):
    d = torch.cdist(p, p)  #! jvp jacfwd
    i, j = torch.triu_indices(5, 5, offset=1)
    return (1 / (d[i, j] + 0.1)).sum()


@case(floats(5, 2))
def lennard_jones(p):
    energy = 0.0
    for i in range(5):
        for j in range(i + 1, 5):
            r2 = ((p[i] - p[j]) ** 2).sum() + 0.5
            energy = energy + 4 * (r2**-6 - r2**-3)
    return energy


@case(floats(5, 2))
def with_cutoff(p):
    energy = p.sum() * 0
    for i in range(5):
        for j in range(i):
            r = (p[i] - p[j]).norm()
            if r < 1.5:  #! vmap
                energy = energy + (1.5 - r) ** 2
    return energy


@case(floats(5, 2))
def polygon_area(p):
    q = torch.roll(p, -1, 0)
    return 0.5 * (p[:, 0] * q[:, 1] - q[:, 0] * p[:, 1]).sum().abs()


@case(floats(6))
def heat_step(u):
    new = u.clone()
    new[1:-1] = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    return new


@case(floats(6))
def heat_in_place(u):
    u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u


@case(floats(6))
def upwind(u):
    speed = u.mean()
    d = u - u.roll(1) if speed > 0 else u.roll(-1) - u  #! vmap
    return u - 0.1 * speed * d


@case(floats(6))
def adaptive_step(u):
    h = 0.5
    while (h * u).abs().max() > 0.3:  #! vmap
        h = h / 2
    return u + h * u


@case(floats(6))
def time_series_buffer(x):
    out = torch.empty(7)
    out[0] = 0.0
    for i in range(6):
        out[i + 1] = 0.9 * out[i] + x[i]  #! vmap
    return out


@case(floats(6))
def time_series_list(x):
    out = [torch.zeros(())]
    for v in x:
        out.append(0.9 * out[-1] + v)
    return torch.stack(out)


@case(floats(4), floats(4, 4), integers(high=3), in_dims=(0, 0, 0))
def scheduled_step(x, a, mode):
    return x - STEP_SIZES[int(mode)] * (a @ x)  #! vmap


@case(floats(4))
def logs_history(x):
    HISTORY.append(x.norm())  #! vmap grad vjp jvp jac hess
    return x / x.norm()


@case(floats(4))
def prints_norm(x):
    print("norm", x.norm().shape)  #! vmap
    return x / x.norm()


@case(floats(4))
def clipped_gradient(x):
    n = x.norm()
    return x * min(1.0, 1.0 / float(n))  #!


@case(floats(4))
def clipped_tensor(x):
    return x * torch.clamp(1.0 / x.norm(), max=1.0)


@case(floats(4))
def simplex_projection(x):
    u = torch.sort(x, descending=True).values
    css = torch.cumsum(u, 0) - 1
    k = torch.nonzero(u * torch.arange(1, 5) > css)[-1, 0]  #! vmap
    theta = css[k] / (k + 1)
    return torch.clamp(x - theta, min=0)


@case(floats(4))
def box_constraint(x):
    x[x > 1] = 1  #! vmap
    x[x < -1] = -1
    return x.sum()


@case(floats(4))
def lagrange(x):
    nodes = torch.arange(4.0)
    total = 0
    for i in range(4):
        weight = 1.0
        for j in range(4):
            if i != j:
                weight = weight * (0.5 - nodes[j]) / (nodes[i] - nodes[j])
        total = total + weight * x[i]
    return total


@case(floats(4), floats(batch=True))
def interpolate(values, t):
    t = torch.sigmoid(t) * 2.99
    i = int(t)  #! vmap
    w = t - i
    return (1 - w) * values[i] + w * values[i + 1]


@case(floats(4), floats(batch=True))
def interpolate_tensor(values, t):
    t = torch.sigmoid(t) * 2.99
    i = t.long()
    w = t - i
    return (1 - w) * values[i] + w * values[i + 1]


@case(floats(4))
def bellman(values):
    reward = torch.tensor([0.0, 1.0, 0.0, -1.0])
    v = values
    for _ in range(3):
        v = torch.maximum(reward + 0.9 * v.roll(1), reward + 0.9 * v.roll(-1))
    return v


@case(floats(4), integers(high=4))
def q_update(q, action):
    q = q.clone()
    q[action] += 0.1 * (1.0 - q[action])
    return q


@case(floats(4))
def epsilon_greedy(q):
    if torch.rand(()) < 0.1:  #!
        return torch.randint(4, ()).float()
    return q.argmax().float()


@case(floats(4))
def monte_carlo(x):
    noise = torch.randn(16, 4)  #!
    return (x + 0.1 * noise).square().mean()


@case(floats(4))
def seeded_monte_carlo(x):
    g = torch.Generator().manual_seed(0)
    return (x + torch.randn(4, generator=g)).square().mean()  #!


@case(floats(4))
def gumbel(x):
    u = torch.rand_like(x)  #!
    return (x - torch.log(-torch.log(u + 1e-9) + 1e-9)).softmax(-1)
