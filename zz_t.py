from acehand_core import Camera

x: Camera
