"""Everything a function reaches: seen, rewound, and put back."""
