mod captured;
mod fuzz;
mod requests;
mod responses;
