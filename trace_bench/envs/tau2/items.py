"""A tool of retail that came with the tasks v1.0, after the port: it looks up one item."""

from __future__ import annotations

from typing import Any


def get_item_details() -> Any:
    """The tool. It changes nothing, so no score of other tasks depends on it."""
    from inspect_ai.tool import ToolError, tool
    from inspect_evals.tau2.retail.tools import get_retail_tools

    @tool(name="get_item_details")
    def made() -> Any:
        async def execute(item_id: str) -> str:
            """Look up one item: its options, its price and whether it is in stock.

            Args:
                item_id: The item's id, such as '1008292230'; it is no product id.

            Returns:
                The item as JSON, or an error if there is none with that id.
            """
            for product in get_retail_tools().db.products.values():
                if item_id in product.variants:
                    return str(product.variants[item_id].model_dump_json())
            raise ToolError("Item not found")

        return execute

    return made()
