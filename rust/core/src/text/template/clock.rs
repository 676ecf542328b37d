//! The date, for templates that tell the model what day it is.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Seconds since 1970 by the system's clock.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs() as i64)
}

/// Python's `strftime` in English and in UTC.
///
/// # Errors
/// The letter of a field that is not known.
pub(super) fn strftime(format: &str, unix_time: i64) -> Result<String, char> {
    let (days, seconds) = (unix_time.div_euclid(86_400), unix_time.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let weekday = (days + 4).rem_euclid(7);
    let hour12 = (hour + 11) % 12 + 1;
    let half = if hour < 12 { "AM" } else { "PM" };
    let day_of_year = days - days_before(year) + 1;
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[weekday as usize]);
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let bare = chars.next_if_eq(&'-').is_some();
        let padded = |value: i64, width: usize| {
            if bare { value.to_string() } else { format!("{value:0width$}") }
        };
        let field = match chars.next() {
            Some('Y') => year.to_string(),
            Some('y') => padded(year.rem_euclid(100), 2),
            Some('m') => padded(month, 2),
            Some('d') => padded(day, 2),
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.to_string(),
            Some('b' | 'h') => month_name[..3].to_string(),
            Some('A') => day_name.to_string(),
            Some('a') => day_name[..3].to_string(),
            Some('H') => padded(hour, 2),
            Some('I') => padded(hour12, 2),
            Some('M') => padded(minute, 2),
            Some('S') => padded(second, 2),
            Some('p') => half.to_string(),
            Some('j') => padded(day_of_year, 3),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('D') => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
            Some('R') => format!("{hour:02}:{minute:02}"),
            Some('w') => weekday.to_string(),
            // What `datetime.now()` has no zone for is empty in Python.
            Some('Z' | 'z') => String::new(),
            Some('s') => unix_time.to_string(),
            Some('%') => "%".to_string(),
            Some(other) => return Err(other),
            None => return Err('%'),
        };
        out.push_str(&field);
    }
    Ok(out)
}

// Days from 1970-01-01 to the first day of a year of the Gregorian calendar.
fn days_before(year: i64) -> i64 {
    let past = year - 1;
    past * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400) - 719_162
}

// Year, month and day of a day counted from 1970-01-01.
fn date(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days.div_euclid(366);
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = days_before(year + 1) - days_before(year) == 366;
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut day = days - days_before(year);
    let mut month = 1;
    for length in lengths {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}
