"""A small ray tracer in plain Python: spheres over a chessboard, with reflections and soft shadows.

It is slow on purpose: every pixel is real computation, the kind that holds a core for as long as it takes. It knows
nothing of jobs.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import NamedTuple


class Vector(NamedTuple):
    x: float
    y: float
    z: float

    def plus(self, other: Vector, times: float = 1.0) -> Vector:
        return Vector(self.x + other.x * times, self.y + other.y * times, self.z + other.z * times)

    def times(self, number: float) -> Vector:
        return Vector(self.x * number, self.y * number, self.z * number)

    def dot(self, other: Vector) -> float:
        return self.x * other.x + self.y * other.y + self.z * other.z

    def unit(self) -> Vector:
        return self.times(1 / math.sqrt(self.dot(self)))


@dataclass(frozen=True, slots=True)
class Sphere:
    centre: Vector
    radius: float
    colour: Vector
    mirror: float  # the part of the light that it reflects


SPHERES = (
    Sphere(Vector(0.0, 1.0, 4.6), 1.0, Vector(0.90, 0.30, 0.22), 0.25),
    Sphere(Vector(1.9, 0.7, 3.6), 0.7, Vector(0.95, 0.75, 0.25), 0.20),
    Sphere(Vector(-1.8, 0.8, 3.9), 0.8, Vector(0.25, 0.55, 0.85), 0.45),
    Sphere(Vector(0.75, 0.35, 2.5), 0.35, Vector(0.35, 0.75, 0.45), 0.30),
    Sphere(Vector(-0.7, 0.3, 2.4), 0.3, Vector(0.85, 0.85, 0.88), 0.70),
)
EYE = Vector(0.0, 1.3, -1.6)
LIGHT = Vector(-4.0, 6.0, -2.0)
LIGHT_RADIUS = 0.7
SHADOW_RAYS = 6
DEPTH = 3  # reflections of reflections


def render(width: int, height: int, left: int, top: int, columns: int, rows: int) -> bytes:
    """Render one tile of a picture of ``width`` by ``height`` pixels; three bytes (RGB) per pixel, row by row."""
    dice = random.Random(top * width + left)  # the same tile is the same picture, whoever renders it
    pixels = bytearray()
    for y in range(top, top + rows):
        for x in range(left, left + columns):
            ray = Vector((x - width / 2) / height, (height * 0.55 - y) / height, 1.15).unit()
            light = trace(EYE, ray, DEPTH, dice)
            pixels += bytes(min(255, int(255 * math.sqrt(max(0.0, part)))) for part in light)
    return bytes(pixels)


def trace(origin: Vector, ray: Vector, depth: int, dice: random.Random) -> Vector:
    """The light that comes along a ray."""
    distance, sphere = nearest(origin, ray)
    if sphere is not None:
        point = origin.plus(ray, distance)
        normal = point.plus(sphere.centre, -1.0).unit()
        colour, mirror = sphere.colour, sphere.mirror
    elif ray.y < -1e-6:
        point = origin.plus(ray, -origin.y / ray.y)
        if abs(point.x) > 40 or point.z > 60:
            return sky(ray)
        normal = Vector(0.0, 1.0, 0.0)
        dark = (math.floor(point.x) + math.floor(point.z)) % 2
        colour, mirror = (Vector(0.16, 0.17, 0.20), 0.18) if dark else (Vector(0.80, 0.78, 0.74), 0.08)
    else:
        return sky(ray)
    above = point.plus(normal, 1e-4)
    lit = colour.times(0.12 + 0.95 * daylight(above, normal, dice))
    if depth == 0 or mirror == 0:
        return lit
    bounced = trace(above, ray.plus(normal, -2 * ray.dot(normal)), depth - 1, dice)
    return lit.times(1 - mirror).plus(bounced, mirror)


def daylight(point: Vector, normal: Vector, dice: random.Random) -> float:
    """How much of the lamp, which is a ball, the point sees: that is what makes a shadow soft."""
    seen = 0.0
    for _ in range(SHADOW_RAYS):
        spread = Vector(dice.uniform(-1, 1), dice.uniform(-1, 1), dice.uniform(-1, 1)).times(LIGHT_RADIUS)
        towards = LIGHT.plus(spread).plus(point, -1.0).unit()
        slant = normal.dot(towards)
        if slant > 0 and nearest(point, towards)[1] is None:
            seen += slant
    return seen / SHADOW_RAYS


def nearest(origin: Vector, ray: Vector) -> tuple[float, Sphere | None]:
    """The first sphere that a ray meets, and how far away."""
    best, found = math.inf, None
    for sphere in SPHERES:
        away = origin.plus(sphere.centre, -1.0)
        half = away.dot(ray)
        inside = half * half - away.dot(away) + sphere.radius * sphere.radius
        if inside > 0:
            distance = -half - math.sqrt(inside)
            if 1e-4 < distance < best:
                best, found = distance, sphere
    return best, found


def sky(ray: Vector) -> Vector:
    height = max(0.0, ray.y)
    return Vector(0.55, 0.70, 0.90).times(1 - height).plus(Vector(0.10, 0.25, 0.60), height)
