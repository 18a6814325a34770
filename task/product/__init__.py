"""The composition root: what one process shares, built once from the settings."""

from task.product.backends import Backend as Backend
from task.product.product import Product as Product
from task.product.product import bare_product as bare_product
